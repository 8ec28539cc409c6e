"""Decoder layers of every family, to be run as one operator or as the five that it is made of."""

from __future__ import annotations

import numpy as np

from tests.ops import spec_attention_reference as reference
from tests.ops.packed import FLOAT_FORMATS, fine_blocks, random_matrix
from tests.ops.single_op import SingleOp
from tests.ops.spec_attention_reference import FORMATS, Config

HIDDEN, INTERMEDIATE, CAPACITY = 96, 160, 450
ATTENTION = Config(heads=6, kv_heads=2, dim=32, scale=0.2, epsilon=1e-6)
SHAPES = {
    "qkv": ((ATTENTION.heads + 2 * ATTENTION.kv_heads) * ATTENTION.dim, HIDDEN),
    "output": (HIDDEN, ATTENTION.heads * ATTENTION.dim),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
MATRICES = {
    **{form: dict.fromkeys(SHAPES, form) for form in ("w4m", "w4", "w8", "f16", "f32")},
    "mixed": {"qkv": "w8", "output": "f16", "gate_up": "w4", "down": "f32"},
    "mixed otherwise": {"qkv": "f32", "output": "w4m", "gate_up": "f16", "down": "w4"},
    "zero points": {"qkv": "w4z32", "output": "w4z64", "gate_up": "w4z32", "down": "w4z32"},
}
ATTRIBUTES = {"hidden": HIDDEN, "intermediate": INTERMEDIATE, **ATTENTION.attributes}
ROWS = (1, 2, 7, 8, 9, 16, 17, 40)
HEADS, KV_HEADS, DIM = ATTENTION.heads, ATTENTION.kv_heads, ATTENTION.dim
QKV = SHAPES["qkv"][0]
BIASES = ("qkv_bias", "output_bias", "gate_up_bias", "down_bias")
POST_NORMS = ("attention_post_norm", "mlp_post_norm")
NORM_BIASES = ("attention_norm_bias", "mlp_norm_bias")
LENGTHS = {
    "qkv_bias": QKV,
    "output_bias": HIDDEN,
    "down_bias": HIDDEN,
    **dict.fromkeys((*POST_NORMS, *NORM_BIASES), HIDDEN),
    "query_scale": CAPACITY,
    "sinks": HEADS,
}
OF_ATTENTION = ("rotate", "norm_after_rotation", "window", "softcap", "interleaved", "gated", "clip")
# Attributes; optional inputs that are given; lengths of the norms of queries and keys, if there are any.
FAMILIES = {
    "llama": ({}, (), None),
    "everything of attention": (
        {"window": 70, "softcap": 3.0, "interleaved": 1},
        ("sinks",),
        (DIM, DIM),
    ),
    "biased queries": ({}, ("qkv_bias",), None),
    "head norms": ({}, (), (DIM, DIM)),
    "post norms, geglu, softcap": ({"activation": "geglu", "softcap": 20.0, "window": 70}, POST_NORMS, None),
    "post norms, geglu, head norms": ({"activation": "geglu"}, POST_NORMS, (DIM, DIM)),
    "scaled residual": ({"residual_scale": 0.22}, (), None),
    "norms of results alone": ({"without_norms": True}, POST_NORMS, (HEADS * DIM, KV_HEADS * DIM)),
    "norms behind the rotation": ({"norm_after_rotation": 1}, (), (DIM, DIM)),
    "gates": ({"gated": 1}, (), (DIM, DIM)),
    "limits": ({"clip": 0.5}, (), (HEADS * DIM, KV_HEADS * DIM)),
    "unrotated": ({"rotate": 0}, (), None),
    "scaled queries": ({"window": 70}, ("query_scale",), None),
    "relu2, layer norm": ({"activation": "relu2", "norm": "layer"}, NORM_BIASES, None),
    "relu2, biased": ({"activation": "relu2"}, BIASES, None),
    "layer norm without a bias": ({"norm": "layer"}, ("qkv_bias",), None),
    "layer norm of one sub-layer": ({}, ("mlp_norm_bias",), None),
    "fine blocks": ({"fine": True}, ("qkv_bias",), None),
    "all": (
        {
            "activation": "geglu",
            "norm": "layer",
            "residual_scale": -0.6,
            "softcap": 5.0,
            "interleaved": 1,
            "window": 90,
        },
        (*BIASES, *POST_NORMS, *NORM_BIASES, "query_scale", "sinks"),
        (HEADS * DIM, DIM),
    ),
}


def extras(rng):
    """Return attention's optional inputs."""
    sizes = {"q_norm": ATTENTION.dim, "k_norm": ATTENTION.dim, "sinks": ATTENTION.heads}
    return {name: rng.uniform(0.5, 1.5, size).astype(np.float32) for name, size in sizes.items()}


def key_constants(rng):
    """Return what keys of 4 bits are written with."""
    heads, dim = ATTENTION.kv_heads, ATTENTION.dim
    drawn = {
        "key_centre": rng.standard_normal((heads, dim)),
        "key_balance": rng.uniform(0.5, 2.0, (heads, dim)),
        "key_feedback": np.triu(0.15 * rng.standard_normal((heads, dim, dim)), 1),
    }
    return {name: array.astype(np.float32) for name, array in drawn.items()}


class Layer:
    """Weights, tables and a cache, to be run as one operator or as five.

    Args:
        formats: of the matrices.
        kv_format: of the cache.
        family: name in ``FAMILIES``.
        options: attributes and inputs of attention besides those of the family.
    """

    def __init__(self, formats, kv_format="f32", family="llama", **options):
        rng = np.random.default_rng(1)
        numbers, given, norms = FAMILIES[family]
        self.formats = formats
        self.attributes = {name: value for name, value in options.items() if not isinstance(value, np.ndarray)}
        self.attributes |= {name: value for name, value in numbers.items() if name not in ("without_norms", "fine")}
        self.activation = numbers.get("activation", "swiglu")
        gate_up = INTERMEDIATE if self.activation == "relu2" else 2 * INTERMEDIATE
        qkv = QKV + HEADS * DIM * numbers.get("gated", 0)
        self.shapes = {**SHAPES, "qkv": (qkv, HIDDEN), "gate_up": (gate_up, HIDDEN)}
        self.weights = {name: random_matrix(rng, formats[name], *shape)[0] for name, shape in self.shapes.items()}
        self.fine = {}
        if "fine" in numbers:
            fine = {name: fine_blocks(form, self.shapes[name][1]) for name, form in formats.items()}
            self.fine = {
                name: ",".join(map(str, blocks)) for name, blocks in fine.items() if formats[name] not in FLOAT_FORMATS
            }
            self.attributes |= {f"{name}_fine_blocks": blocks for name, blocks in self.fine.items()}
        self.norms = {name: rng.random(HIDDEN).astype(np.float32) for name in ("attention_norm", "mlp_norm")}
        if "without_norms" in numbers:
            self.norms = {}
        angles = rng.random((CAPACITY, ATTENTION.dim // 2))
        self.cache = reference.empty_cache(ATTENTION, kv_format, CAPACITY)
        self.shared = {
            "row_map": rng.permutation(CAPACITY).astype(np.int32),
            "kv_formats": np.array([-1, FORMATS.index(kv_format)], np.int32),
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
            **{name: value for name, value in options.items() if isinstance(value, np.ndarray)},
        }
        lengths = {**LENGTHS, "gate_up_bias": gate_up}
        self.more = {name: rng.uniform(-1.0, 1.5, lengths[name]).astype(np.float32) for name in given}
        for name, length in zip(("q_norm", "k_norm"), norms or (), strict=False):
            self.shared[name] = rng.uniform(0.5, 1.5, length).astype(np.float32)
        self.shared |= {name: self.more.pop(name) for name in ("query_scale", "sinks") if name in self.more}
        self._ops = {}

    def place(self, past, parents):
        return {
            "cache": self.cache,
            "past_length": np.array([past], np.int32),
            "parents": np.array(parents, np.int32),
            **self.shared,
            "row_map": self.shared["row_map"][None],
        }

    def whole(self, x, past, parents, *, changed=None, attributes=None, **options):
        """Run the one operator; ``changed`` inputs and ``attributes`` replace the layer's own."""
        numbers = {**ATTRIBUTES, **self.attributes, **{f"{name}_format": form for name, form in self.formats.items()}}
        inputs = {"x": x, **self.place(past, parents), "sequence_rows": INT(len(x))}
        inputs |= {**self.norms, **self.weights, **self.more, **(changed or {})}
        return self._run("DecoderLayer", "whole", {**numbers, **(attributes or {})}, inputs, options)

    def in_parts(self, x, past, parents):
        numbers = {name: self.attributes[name] for name in OF_ATTENTION if name in self.attributes}
        qkv = self._normed("qkv", x, "attention_norm")
        inputs = {"qkv": qkv, **self.place(past, parents), "sequence_rows": INT(len(x))}
        attended = self._run("SpecAttention", "attention", {**ATTENTION.attributes, **numbers}, inputs, {})
        middle = self._added("output", attended, x, "attention_post_norm")
        hidden = self._normed("gate_up", middle, "mlp_norm", activation=self.activation)
        return self._added("down", hidden, middle, "mlp_post_norm")

    def _normed(self, name, x, norm, activation="none"):
        inputs = {"norm_weight": self.norms.get(norm), "norm_bias": self.more.get(f"{norm}_bias")}
        numbers = {"norm": self.attributes.get("norm", "rms"), "activation": activation}
        return self._product(name, x, numbers, inputs)

    def _added(self, name, x, residual, norm):
        inputs = {"residual": residual, "post_norm": self.more.get(norm)}
        return self._product(name, x, {"residual_scale": self.attributes.get("residual_scale", 1.0)}, inputs)

    def _product(self, name, x, numbers, optional):
        rows, columns = self.shapes[name]
        attributes = {"format": self.formats[name], "out_features": rows, "in_features": columns}
        attributes |= {"epsilon": ATTENTION.epsilon, "activation": "none", **numbers}
        attributes |= {"fine_blocks": self.fine[name]} if name in self.fine else {}
        inputs = {"x": x, "weight": self.weights[name], "bias": self.more.get(f"{name}_bias"), **optional}
        given = {key: array for key, array in inputs.items() if array is not None}
        return self._run("QuantLinear", name, attributes, given, {})

    def _run(self, op, name, attributes, inputs, options):
        key = (name, *attributes.items(), *options.items(), *inputs)
        if key not in self._ops:
            self._ops[key] = SingleOp(op, attributes, inputs, **options)
        return self._ops[key].run_in_place(**inputs)[0]


def random_rows(rng, count):
    return (rng.standard_normal((count, HIDDEN)) * 2).astype(np.float32)


def chain(count):
    return list(range(-1, count - 1))


def passes(starts=(0, 100, 300)):
    """Rows, where they stand and what they follow: a prompt in pieces; then behind parts of it, chains and trees.

    Trees at 250 end behind the first 256 positions, which are summed up apart from those that follow.
    """
    rng = np.random.default_rng(2)
    for past, count in ((0, 130), (130, 130), (260, 40)):
        yield random_rows(rng, count), past, chain(count)
    for past in (*starts, 250):
        for count in ROWS:
            yield random_rows(rng, count), past, chain(count)
            yield random_rows(rng, count), past, [int(rng.integers(-1, i)) if i else -1 for i in range(count)]


INT = lambda *values: np.array(values, np.int32)  # noqa: E731
ZEROS = lambda *dims: np.zeros(dims, np.float32)  # noqa: E731
BAD_INPUTS = {
    "x of another width": ({"x": ZEROS(2, HIDDEN - 32)}, r"x is \[2, 64\]"),
    "x of other rows": ({"x": ZEROS(3, HIDDEN)}, "parents is"),
    "no rows": ({"x": ZEROS(0, HIDDEN), "parents": INT()}, "x has no rows"),
    "attention norm": ({"attention_norm": ZEROS(HIDDEN + 1)}, "attention_norm is"),
    "mlp norm": ({"mlp_norm": ZEROS(1)}, "mlp_norm is"),
    "parent of the future": ({"parents": INT(-1, 1)}, r"parents\[1\] is 1"),
    "past beyond the cache": ({"past_length": INT(CAPACITY - 1)}, "past_length 449 and 2 rows"),
    "negative past": ({"past_length": INT(-1)}, "past_length -1"),
    "row beyond the cache": ({"row_map": INT([*range(6), *[CAPACITY] * (CAPACITY - 6)])}, "row_map holds 450"),
    "row given twice": ({"row_map": np.zeros((1, CAPACITY), np.int32)}, "row_map gives row 0"),
    "row map of fewer positions": ({"row_map": INT([0, 1, 2])}, "past_length 5 and 2 rows of the pass"),
    "row maps of more sequences": ({"row_map": np.zeros((2, CAPACITY), np.int32)}, r"row_map is \[2, 450\]"),
    "sequence without rows": ({"sequence_rows": INT(0)}, r"sequence_rows\[0\] is 0"),
    "rows of no sequence": ({"sequence_rows": INT(1)}, r"sequence_rows\[0\] is 1, the pass has 2 rows"),
    "unknown kv format": ({"kv_formats": INT(0, 7)}, r"kv_formats\[1\] is 7"),
    "no format for the layer": ({"kv_formats": INT(0)}, "kv_formats has 1 entries"),
    "positions end": ({"cos": ZEROS(6, 16), "sin": ZEROS(6, 16)}, "position 6 has no row"),
    "sin unlike cos": ({"sin": ZEROS(CAPACITY, 15)}, "sin is"),
    "sinks of other heads": ({"sinks": ZEROS(5)}, "sinks is"),
    "centre of other heads": ({"key_centre": ZEROS(6, 32)}, r"key_centre is \[6, 32\]"),
    "centre beside sinks": ({"key_centre": ZEROS(2, 32)}, "key_centre is given beside sinks"),
    "balance of another head size": ({"key_balance": ZEROS(2, 31)}, "key_balance is"),
    "feedback without columns": ({"key_feedback": ZEROS(2, 32)}, "key_feedback is"),
    **{name: ({name: ZEROS(length + 1)}, rf"{name} is \[{length + 1}\]") for name, length in LENGTHS.items()},
    "bias of a gate alone": ({"gate_up_bias": ZEROS(INTERMEDIATE)}, r"gate_up_bias is \[160\], must be \[320\]"),
    "row norm of other heads": ({"q_norm": ZEROS(2 * DIM)}, r"q_norm is \[64\], must be \[32\] or \[192\]"),
}
"""Changed inputs of a llama layer of 4-bit matrices with ``extras``, and what is said of them."""
