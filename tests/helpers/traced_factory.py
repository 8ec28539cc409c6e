"""A small decoder as another exporter would trace it, its numpy twin, and a folder that it may have come from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from edge_rt.export.traced.tracing import ModelNumbers, Trace
from tests.helpers.hf_factory import write_safetensors
from tests.helpers.tokenizer_texts import byte_vocabulary

LAYERS, HEADS, HEAD_DIM, CONTEXT = 2, 2, 8, 96
HIDDEN = HEADS * HEAD_DIM
SCHEMES = {
    "transformers 5.23": ("input.past_key_values.layers.{}.{}s", "output.past_key_values.layers.{}.{}s"),
    "transformers 5.24": ("input.cache.layers.{}.{}s", "output.cache.layers.{}.{}s"),
    "optimum": ("past_key_values.{}.{}", "present.{}.{}"),
}
TOKENS, MERGES = byte_vocabulary()
VOCAB = {token: number for number, token in enumerate(["<|endoftext|>", *TOKENS])}
ROWS_OF_LOGITS = 48


@dataclass
class TracedModel:
    """Weights of a decoder without norms: embeddings of tokens and positions, attention, and the embedding as head.

    Args:
        seed: of the weights.
        scale: of the logits.
    """

    seed: int = 3
    scale: float = 0.5
    weights: dict = field(default_factory=dict)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        shapes = {"embedding": (len(VOCAB), HIDDEN), "positions": (CONTEXT, HIDDEN)}
        shapes |= {f"{name}{layer}": (HIDDEN, HIDDEN) for layer in range(LAYERS) for name in "qkvo"}
        self.weights = {name: (rng.normal(size=shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}
        # The token that ends an answer is never the most likely one.
        self.weights["embedding"][0] = 0

    def logits(self, token_ids):
        """Return the logits of all tokens, in float64."""
        weights = {name: values.astype(np.float64) for name, values in self.weights.items()}
        x = weights["embedding"][token_ids] + weights["positions"][: len(token_ids)]
        for layer in range(LAYERS):
            q, k, v = (
                (x @ weights[f"{name}{layer}"].T).reshape(-1, HEADS, HEAD_DIM).transpose(1, 0, 2) for name in "qkv"
            )
            scores = q @ k.transpose(0, 2, 1)
            scores[:, np.triu_indices(len(x), 1)[0], np.triu_indices(len(x), 1)[1]] = -np.inf
            with np.errstate(invalid="ignore"):
                shares = np.exp(scores - scores.max(-1, keepdims=True))
            attended = (shares / shares.sum(-1, keepdims=True)) @ v
            x = x + attended.transpose(1, 0, 2).reshape(-1, HIDDEN) @ weights[f"o{layer}"].T
        return x @ weights["embedding"].T * self.scale

    def greedy(self, token_ids, count):
        """Return the most likely continuation."""
        ids = list(token_ids)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(token_ids) :]


class _Builder:
    def __init__(self):
        self.nodes, self.initializers, self.inputs = [], {}, []

    def input(self, name, shape, dtype=ir.DataType.FLOAT):
        self.inputs.append(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)))
        return self.inputs[-1]

    def weight(self, name, values):
        if name not in self.initializers:
            tensor = ir.tensor(np.asarray(values), name=name)
            self.initializers[name] = ir.Value(
                name=name, shape=ir.Shape(values.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
        return self.initializers[name]

    def add(self, op_type, *inputs, shape=None, name=None, dtype=ir.DataType.FLOAT, **attributes):
        output = ir.Value(name=name or f"n{len(self.nodes)}", type=ir.TensorType(dtype))
        if shape is not None:
            output.shape = ir.Shape(shape)
        node = ir.node(op_type, inputs, attributes, outputs=[output])
        node.metadata_props["pkg.torch.onnx.stack_trace"] = "File /home/someone/model.py"
        self.nodes.append(node)
        return output

    def ints(self, *values):
        return self.weight(f"ints{'_'.join(map(str, values))}", np.asarray(values, np.int64))


def traced_graph(model, scheme="transformers 5.24", *, takes_mask=False, appends=True, has_plain_head=True):
    """Return the graph of a model as an ``ir.Model``.

    Args:
        model: a ``TracedModel``.
        scheme: of the names of caches.
        takes_mask: whether there is an attention mask, ones for visible tokens, that the scores depend on.
        appends: whether the new cache is the old one with new rows appended; else something is computed of both.
        has_plain_head: whether the head is one multiplication; else its rows pass through another step.
    """
    b = _Builder()
    past_name, present_name = SCHEMES[scheme]
    ids = b.input("input_ids", [1, "s1"], ir.DataType.INT64)
    mask = b.input("attention_mask", [1, "s0 + s1"], ir.DataType.INT64) if takes_mask else None
    positions = b.input("position_ids", [1, "s1"], ir.DataType.INT64)
    cache = [1, HEADS, "s0", HEAD_DIM]
    pasts = {(i, kind): b.input(past_name.format(i, kind), cache) for i in range(LAYERS) for kind in ("key", "value")}
    row, heads, whole = [1, "s1", HIDDEN], [1, HEADS, "s1", HEAD_DIM], [1, HEADS, "s0 + s1", HEAD_DIM]
    x = b.add(
        "Add",
        b.add("Gather", b.weight("embedding", model.weights["embedding"]), ids, shape=row),
        b.add("Gather", b.weight("positions", model.weights["positions"]), positions, shape=row),
        shape=row,
    )
    presents = {}
    hidden_keys = None
    for layer in range(LAYERS):

        def linear(value, name, layer=layer):
            weight = b.weight(f"{name}{layer}", model.weights[f"{name}{layer}"])
            return b.add("MatMul", value, b.add("Transpose", weight, perm=[1, 0]), shape=row)

        def split(value):
            return b.add(
                "Transpose", b.add("Reshape", value, b.ints(1, -1, HEADS, HEAD_DIM)), perm=[0, 2, 1, 3], shape=heads
            )

        for kind, name in (("key", "k"), ("value", "v")):
            joined = b.add("Concat", pasts[layer, kind], split(linear(x, name)), axis=2, shape=whole)
            if not appends:
                joined = b.add("Mul", joined, b.weight("one", np.ones(1, np.float32)), shape=whole)
            presents[layer, kind] = joined
        turned = b.add("Transpose", presents[layer, "key"], perm=[0, 1, 3, 2])
        scores = b.add("MatMul", split(linear(x, "q")), turned, shape=[1, HEADS, "s1", "s0 + s1"])
        if hidden_keys is None:
            hidden_keys = _hidden(b, positions, presents[0, "key"], mask)
        far = b.weight("far", np.asarray(-1e30, np.float32))
        scores = b.add("Where", hidden_keys, far, scores, shape=[1, HEADS, "s1", "s0 + s1"])
        attended = b.add("MatMul", b.add("Softmax", scores, axis=-1), presents[layer, "value"], shape=heads)
        flat = b.add("Reshape", b.add("Transpose", attended, perm=[0, 2, 1, 3]), b.ints(1, -1, HIDDEN), shape=row)
        x = b.add("Add", x, linear(flat, "o"), shape=row)
    vocabulary = [1, "s1", len(VOCAB)]
    head = b.add("Transpose", b.weight("embedding", model.weights["embedding"]), perm=[1, 0])
    logits = b.add("MatMul", x, head, shape=vocabulary)
    if not has_plain_head:
        logits = b.add("Reshape", logits, b.ints(1, -1, len(VOCAB)), shape=vocabulary)
    logits = b.add("Mul", logits, b.weight("scale", np.asarray(model.scale, np.float32)), shape=vocabulary)
    outputs = [logits, *presents.values()]
    for (layer, kind), value in presents.items():
        value.name = present_name.format(layer, kind)
    logits.name = "logits"
    graph = ir.Graph(
        b.inputs, outputs, nodes=b.nodes, initializers=[*b.initializers.values()], opset_imports={"": 20}, name="main"
    )
    return ir.Model(graph, ir_version=10, producer_name="a tracer")


def _hidden(b, positions, keys, mask):
    """Return which keys a row does not see, bool ``[1, 1, rows, tokens]``."""
    total = b.add("Squeeze", b.add("Shape", keys, start=2, end=3, dtype=ir.DataType.INT64), dtype=ir.DataType.INT64)
    zero, one = b.weight("zero", np.asarray(0, np.int64)), b.weight("unit", np.asarray(1, np.int64))
    places = b.add("Range", zero, total, one, shape=["s0 + s1"], dtype=ir.DataType.INT64)
    rows = b.add("Unsqueeze", positions, b.ints(1, 3), shape=[1, 1, "s1", 1], dtype=ir.DataType.INT64)
    shape = [1, 1, "s1", "s0 + s1"]
    hidden = b.add("Greater", places, rows, shape=shape, dtype=ir.DataType.BOOL)
    if mask is None:
        return hidden
    unseen = b.add(
        "Equal", b.add("Unsqueeze", mask, b.ints(1, 2), dtype=ir.DataType.INT64), zero, dtype=ir.DataType.BOOL
    )
    return b.add("Or", hidden, unseen, shape=shape, dtype=ir.DataType.BOOL)


def numbers(model):
    """Return what a configuration would say of a model."""
    return ModelNumbers(
        architecture="unheard_of",
        hidden_size=HIDDEN,
        num_heads=HEADS,
        intermediate_size=0,
        vocab_size=len(VOCAB),
        context_length=CONTEXT,
        norm_epsilon=0,
        tied_embedding=True,
        num_parameters=sum(values.size for values in model.weights.values()),
    )


def tracer_of(model, **options):
    """Return what writes the trace of a model, in the place of transformers; ``logits`` replaces the right ones."""
    wrong = options.pop("logits", None)

    def trace(folder, out):
        del folder
        graph = out / "traced.onnx"
        ir.save(traced_graph(model, **options), graph, external_data="traced.onnx.data")
        ids = tuple((7 + 37 * i) % len(VOCAB) for i in range(ROWS_OF_LOGITS))
        logits = model.logits(list(ids)).astype(np.float32)
        return Trace(graph, "a tracer 1.0", numbers(model), ids, logits if wrong is None else wrong(logits))

    return trace


def write_folder(folder, model, **config):
    """Write the folder of a model; ``config`` are further keys of ``config.json``."""
    folder.mkdir(parents=True)
    document = {"model_type": "unheard_of", "vocab_size": len(VOCAB), "eos_token_id": 0, **config}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", model.weights)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder):
    """Write a tokenizer over bytes, of ``VOCAB``, whose token 0 ends a text."""
    added = {"id": 0, "content": "<|endoftext|>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    cut = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {
        "version": "1.0",
        "added_tokens": [added | flags],
        "normalizer": None,
        "pre_tokenizer": cut,
        "post_processor": None,
        "decoder": cut | {"add_prefix_space": True},
        "model": {"type": "BPE", "vocab": VOCAB, "merges": [list(pair) for pair in MERGES]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}), encoding="utf-8")
