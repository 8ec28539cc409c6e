"""GGUF files for tests: byte by byte (`RawGGUF`) or whole small llama models (`write_llama_gguf`)."""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.helpers.ggml_blocks import exact_values, random_rows

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID, UNKNOWN_ID = 1, 2, 0

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = """\
The little boat left the harbour at dawn, and the sea was calm. There was a light wind from the south, and the water
carried the boat along the coast. The people on the shore waved until they could no longer see the sail. In the evening
they came to an island where nobody lived. They made a fire, they cooked the fish that they had caught, and they told
each other stories of other voyages. What is the name of the island? asked the youngest of them. It has no name yet,
said the captain, so you may give it one. Then it shall be called the Island of the Morning, because we shall leave it
in the morning. The next day, in 1984, they sailed on; 3 days and 12 hours later they were home again.
You are a helpful assistant. Hello! How are you today? I am fine, thank you. Count from one to ten: 1, 2, 3, 4, 5.
"""

# --- whole models ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class LlamaFile:
    """What `write_llama_gguf` wrote.

    Attributes:
        path: the file.
        weights: float32 values of every tensor as they can be read back (after quantisation), in numpy's order
            (outermost dimension first); q and k rows stand in the file's interleaved rope order.
        types: name of the ggml type of every tensor.
        tokens: vocabulary, by id.
        merges: merges of the tokenizer, most frequent first.
        config: the arguments that shaped the model, by their name in `write_llama_gguf`.
    """

    path: Path
    weights: dict[str, np.ndarray]
    types: dict[str, str]
    tokens: list[str]
    merges: list[str]
    config: dict[str, object]


@functools.cache
def small_bpe(merge_count: int = 160) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Train a byte-level BPE tokenizer on an inline text; return its tokens (specials first) and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL_TOKENS) + 256 + merge_count,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    return tuple(tokens), tuple(merges)


def vocabulary(size: int | None = None) -> tuple[list[str], list[str]]:
    """Return tokens and merges of a vocabulary of `size` tokens (default: all that was trained, 419).

    Smaller sizes drop the last merges (at least 259 tokens), larger ones append unused tokens.
    """
    tokens, merges = (list(part) for part in small_bpe())
    if size is None:
        return tokens, merges
    first_merge = len(SPECIAL_TOKENS) + 256
    if size < first_merge:
        raise ValueError(f"a byte-level vocabulary needs at least {first_merge} tokens, got {size}")
    dropped = max(0, len(tokens) - size)
    if dropped:
        tokens, merges = tokens[:size], merges[: len(merges) - dropped]
    tokens += [f"[unused{index}]" for index in range(size - len(tokens))]
    return tokens, merges


def write_llama_gguf(
    path: Path,
    *,
    seed: int = 0,
    weight_type: str = "Q4_1",
    embedding_type: str = "Q8_0",
    output_type: str = "Q8_0",
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 128,
    vocab: int | None = None,
    context: int = 256,
    tied: bool = True,
    rms_norm_eps: float = 1e-5,
    rope_theta: float = 10000.0,
    rope_scaling: Mapping[str, object] | None = None,
    rope_freqs: bool = False,
    pre: str = "smollm",
    chat_template: str | None = CHATML,
    types: Mapping[str, str] | Callable[[str], str | None] | None = None,
    architecture: str = "llama",
    extra_metadata: Mapping[str, object] | None = None,
    drop_metadata: Sequence[str] = (),
    drop_tensor: str | Sequence[str] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    weight_scale: float = 0.08,
) -> LlamaFile:
    """Write a small llama model with random weights and a real byte-level BPE tokenizer.

    Args:
        path: file to write.
        seed: of the weights; the same arguments give the same bytes.
        weight_type: ggml type of the layers' matrices: any that is exported; of those that gguf
            cannot write, blocks are random, and `seed` does not matter.
        embedding_type: ggml type of `token_embd.weight`.
        output_type: ggml type of `output.weight`, written unless `tied`.
        head_dim: size of a head; default hidden / heads. Stated in the file where it differs from that.
        vocab: number of tokens; see `vocabulary`.
        rope_scaling: keys below `llama.rope.scaling.`, for example {"type": "linear", "factor": 2.0}.
        rope_freqs: write `rope_freqs.weight`, the frequency factors of Llama 3, float32 [head_dim / 2].
        pre: `tokenizer.ggml.pre`.
        chat_template: `tokenizer.chat_template`; None leaves it out.
        types: exceptions from the types above by tensor name: a mapping, or a function that may return None.
        extra_metadata: keys to add or to replace; str, bool, int (uint32, or uint64 where it needs to be), float
            (float32) and lists.
        drop_metadata: keys to leave out.
        drop_tensor: name or names of tensors to leave out.
        extra_tensors: float32 tensors to add, outermost dimension first.
        weights: float32 values that replace the random ones, outermost dimension first.
        weight_scale: standard deviation of the random matrices.
    """
    size = head_dim if head_dim is not None else hidden // heads
    tokens, merges = vocabulary(vocab)
    config: dict[str, object] = {
        "seed": seed, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": size,
        "ffn": ffn, "vocab": len(tokens), "context": context, "tied": tied, "rms_norm_eps": rms_norm_eps,
        "rope_theta": rope_theta, "rope_scaling": dict(rope_scaling or {}), "rope_freqs": rope_freqs,
        "architecture": architecture,
    }  # fmt: skip
    tensors = _random_tensors(config, weight_scale)
    tensors.update(extra_tensors or {})
    tensors.update(weights or {})
    for name in [drop_tensor] if isinstance(drop_tensor, str) else drop_tensor or ():
        del tensors[name]

    metadata = _llama_metadata(config) | _tokenizer_metadata(tokens, merges, pre, chat_template)
    metadata.update(extra_metadata or {})
    for key in drop_metadata:
        del metadata[key]

    def type_of(name: str, values: np.ndarray) -> str:
        chosen = types(name) if callable(types) else (types or {}).get(name)
        if chosen is not None:
            return chosen
        if values.ndim == 1:
            return "F32"
        return {"token_embd.weight": embedding_type, "output.weight": output_type}.get(name, weight_type)

    chosen = {name: type_of(name, values) for name, values in tensors.items()}
    return _write(path, metadata, tensors, chosen, LlamaFile(path, {}, chosen, tokens, merges, config))


def _random_tensors(config: Mapping[str, object], scale: float) -> dict[str, np.ndarray]:
    """Return float32 values by name, outermost dimension first, in the order of real files."""
    rng = np.random.default_rng(config["seed"])
    hidden, ffn, head_dim = config["hidden"], config["ffn"], config["head_dim"]
    q_rows, kv_rows = config["heads"] * head_dim, config["kv_heads"] * head_dim

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + rng.standard_normal(hidden) * 0.05).astype(np.float32)

    tensors = {"token_embd.weight": matrix(config["vocab"], hidden)}
    if config["rope_freqs"]:
        tensors["rope_freqs.weight"] = np.geomspace(1, 8, head_dim // 2).astype(np.float32)
    for layer in range(config["layers"]):
        block = {
            "attn_norm": norm(), "ffn_down": matrix(hidden, ffn), "ffn_gate": matrix(ffn, hidden),
            "ffn_up": matrix(ffn, hidden), "ffn_norm": norm(), "attn_k": matrix(kv_rows, hidden),
            "attn_output": matrix(hidden, q_rows), "attn_q": matrix(q_rows, hidden), "attn_v": matrix(kv_rows, hidden),
        }  # fmt: skip
        tensors.update({f"blk.{layer}.{name}.weight": values for name, values in block.items()})
    tensors["output_norm.weight"] = norm()
    if not config["tied"]:
        tensors["output.weight"] = matrix(config["vocab"], hidden)
    return tensors


def _llama_metadata(config: Mapping[str, object]) -> dict[str, object]:
    arch = config["architecture"]
    metadata: dict[str, object] = {
        "general.name": "Test Llama",
        "general.license": "apache-2.0",
        f"{arch}.block_count": config["layers"],
        f"{arch}.context_length": config["context"],
        f"{arch}.embedding_length": config["hidden"],
        f"{arch}.feed_forward_length": config["ffn"],
        f"{arch}.attention.head_count": config["heads"],
        f"{arch}.attention.head_count_kv": config["kv_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": config["rope_theta"],
        f"{arch}.rope.dimension_count": config["head_dim"],
        f"{arch}.vocab_size": config["vocab"],
    }
    if config["head_dim"] * config["heads"] != config["hidden"]:
        metadata[f"{arch}.attention.key_length"] = config["head_dim"]
        metadata[f"{arch}.attention.value_length"] = config["head_dim"]
    metadata.update({f"{arch}.rope.scaling.{key}": value for key, value in config["rope_scaling"].items()})
    return {"general.architecture": arch} | metadata


def _tokenizer_metadata(
    tokens: Sequence[str], merges: Sequence[str], pre: str, chat_template: str | None
) -> dict[str, object]:
    token_types = [3] * len(SPECIAL_TOKENS) + [5 if token.startswith("[unused") else 1 for token in tokens[3:]]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": token_types,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.unknown_token_id": UNKNOWN_ID,
        "tokenizer.ggml.padding_token_id": EOS_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    return metadata if chat_template is None else metadata | {"tokenizer.chat_template": chat_template}


def _write(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Mapping[str, np.ndarray],
    types: Mapping[str, str],
    written: LlamaFile,
) -> LlamaFile:
    rest = dict(metadata)
    writer = gguf.GGUFWriter(path, rest.pop("general.architecture", "llama"))
    if "general.architecture" not in metadata:
        del writer.kv_data[0]["general.architecture"]
    alignment = rest.pop("general.alignment", None)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in rest.items():
        _add_value(writer, key, value)
    for name, values in tensors.items():
        qtype = gguf.GGMLQuantizationType[types[name]]
        data = _quantised(name, values, types[name])
        writer.add_tensor(name, data, raw_dtype=qtype)
        written.weights[name] = gguf.quants.dequantize(data, qtype).reshape(values.shape).astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _quantised(name: str, values: np.ndarray, type_name: str) -> np.ndarray:
    """Return the bytes of a tensor; of types that gguf cannot write, random blocks with weights of that size."""
    try:
        return quantize(values, gguf.GGMLQuantizationType[type_name])
    except NotImplementedError:
        rng = np.random.default_rng(list(name.encode()))
        raw = random_rows(rng, type_name, *values.shape, 1.0)
        if type_name != "MXFP4":
            # The values' deviation over that of the blocks, as the blocks' fp16 numbers.
            raw = random_rows(np.random.default_rng(list(name.encode())), type_name, *values.shape,
                              values.std() / exact_values(type_name, raw, values.shape[1]).std())  # fmt: skip
        return raw


def _add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int) and value < 0:
        writer.add_int64(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value < 1 << 32 else writer.add_uint64)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


# --- files byte by byte ---------------------------------------------------------------------------

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8

_FORMATS = {
    UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B",
    UINT64: "Q", INT64: "q", FLOAT64: "d",
}  # fmt: skip
_SIZES = {kind.value: size for kind, size in gguf.GGML_QUANT_SIZES.items()}


def u32(value: int) -> bytes:
    """Return the four bytes of a little-endian unsigned number."""
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    """Return the eight bytes of a little-endian unsigned number."""
    return struct.pack("<Q", value)


def raw_string(text: str | bytes, *, length: int | None = None) -> bytes:
    """Return a GGUF string; `length` states another length than the true one."""
    data = text if isinstance(text, bytes) else text.encode()
    return u64(len(data) if length is None else length) + data


def raw_scalar(value_type: int, value: object) -> bytes:
    """Return the bytes of a value that is no array."""
    if value_type == STRING:
        return raw_string(value)
    return struct.pack("<" + _FORMATS[value_type], value)


def raw_array(item_type: int, items: Sequence[object], *, length: int | None = None) -> bytes:
    """Return the bytes of an array value; `length` states another number of elements than the true one."""
    if item_type == STRING:
        data = b"".join(map(raw_string, items))
    else:
        data = struct.pack(f"<{len(items)}{_FORMATS[item_type]}", *items)
    return u32(item_type) + u64(len(items) if length is None else length) + data


def raw_kv(key: str | bytes, value_type: int, value: bytes, *, key_length: int | None = None) -> bytes:
    """Return the bytes of one metadata entry, its value given as bytes."""
    return raw_string(key, length=key_length) + u32(value_type) + value


def raw_tensor_info(
    name: str | bytes, dims: Sequence[int], type_id: int, offset: int, *, n_dims: int | None = None
) -> bytes:
    """Return the bytes of one tensor description; `n_dims` states another number than the true one."""
    shape = b"".join(u64(dim) for dim in dims)
    return raw_string(name) + u32(len(dims) if n_dims is None else n_dims) + shape + u32(type_id) + u64(offset)


@dataclass
class RawGGUF:
    """A GGUF file under construction, in which every number can be a lie.

    Attributes:
        magic: first four bytes.
        version: format version.
        n_tensors: stated number of tensors; None: the true one.
        n_kv: stated number of metadata entries; None: the true one.
        alignment: what data and tensors are padded to (add the metadata key yourself).
        kvs: encoded metadata entries.
        infos: encoded tensor descriptions.
        data: the data section so far.
        trailing: bytes after the data.
    """

    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_kv: int | None = None
    alignment: int = 32
    kvs: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    trailing: bytes = b""

    def kv(self, key: str | bytes, value_type: int, value: object) -> RawGGUF:
        """Add a well-formed metadata entry that is no array."""
        self.kvs.append(raw_kv(key, value_type, raw_scalar(value_type, value)))
        return self

    def array(self, key: str, item_type: int, items: Sequence[object]) -> RawGGUF:
        """Add a well-formed array."""
        self.kvs.append(raw_kv(key, ARRAY, raw_array(item_type, items)))
        return self

    def raw(self, entry: bytes) -> RawGGUF:
        """Add a metadata entry as bytes."""
        self.kvs.append(entry)
        return self

    def tensor(
        self, name: str | bytes = "t", dims: Sequence[int] = (32,), type_id: int = F32, offset: int | None = None
    ) -> RawGGUF:
        """Add a tensor with zeros as its data; `offset` states another place than the true one."""
        self.data += bytes(-len(self.data) % self.alignment)
        place = len(self.data) if offset is None else offset
        self.infos.append(raw_tensor_info(name, dims, type_id, place))
        block, size = _SIZES.get(type_id, (1, 4))
        self.data += bytes(math.prod(dims) // block * size)
        return self

    def info(self, entry: bytes) -> RawGGUF:
        """Add a tensor description as bytes, without data."""
        self.infos.append(entry)
        return self

    def header(self) -> bytes:
        """Return everything before the padding of the data section."""
        counts = u64(len(self.infos) if self.n_tensors is None else self.n_tensors)
        counts += u64(len(self.kvs) if self.n_kv is None else self.n_kv)
        return self.magic + u32(self.version) + counts + b"".join(self.kvs) + b"".join(self.infos)

    def build(self) -> bytes:
        """Return the whole file."""
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data + self.trailing

    def write(self, path: Path) -> Path:
        """Write the whole file and return its path."""
        path.write_bytes(self.build())
        return path


def good_raw() -> RawGGUF:
    """Return a small well-formed file: one value of every type, arrays, and three tensors."""
    raw = RawGGUF().kv("general.architecture", STRING, "llama").kv("general.alignment", UINT32, 32)
    for value_type, value in enumerate((1, -1, 2, -2, 3, -3, 0.5, True, "text", None, 1 << 63, -(1 << 62), 0.25)):
        if value_type != ARRAY:
            raw.kv(f"test.type{value_type}", value_type, value)
    raw.array("test.strings", STRING, ["Ġa", "b", ""]).array("test.ints", INT32, [1, -2, 3])
    raw.array("test.bools", BOOL, [True, False]).array("test.floats", FLOAT32, [0.5, -1.5])
    raw.tensor("token_embd.weight", (64, 5), Q8_0).tensor("output_norm.weight", (64,), F32)
    return raw.tensor("blk.0.attn_q.weight", (64, 3), Q4_1)
