"""How large a package would be: from a checkpoint's header alone, nothing is loaded and nothing is written.

Of a GGUF file that can be exported the sizes are those of the export. Anything else is estimated as if it could be:
from ``config.json`` and the headers of ``*.safetensors``, or from the header of a GGUF file of another architecture,
with matrices in 4 bits and embedding and head in 8.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, StorageError, UnsupportedModel
from edge_rt.export.gguf_header import read_header
from edge_rt.export.gguf_types import GGUFHeader
from edge_rt.export.llama import ARCHITECTURES, read_config
from edge_rt.ops import MAX_HEAD_DIM, MAX_HEADS, library_path
from edge_rt.package import ModelConfig

CONFIG_FILE: Final = "config.json"
WEIGHTS_PATTERN: Final = "*.safetensors"
MATRIX_BITS: Final = "matrices in 4 bits (blocks of 32 with scale and minimum), embedding and head in 8 bits"
"""What is assumed of a package that cannot be exported yet."""

_TILE_ROWS, _BLOCK = 16, 32
_BYTES_4_BIT, _BYTES_8_BIT = 320, 544  # of a block of a tile: as packing lays Q4_1 and Q8_0
_PAGE: Final = 4096
_MAX_HEADER_BYTES: Final = 100 << 20
_MAX_CONFIG_BYTES: Final = 16 << 20
_JSON_TOKEN_BYTES: Final = 42  # of a tokenizer.json, for each token: measured 32 to 43
_MAX_LAYERS: Final = 4096
_HUGE: Final = 1 << 40
_MAX_AXES: Final = 8
_MAX_CONTEXT: Final = 1 << 24


@dataclass(frozen=True)
class Foreseen:
    """A package that was not made.

    Attributes:
        config: numbers of the architecture.
        op_profile: of the package.
        weights_bytes: of its ``weights.bin``.
        embedding_bytes: of a token embedding that the head does not share; 0 if it does.
        tokenizer_bytes: of its ``tokenizer.json``.
        window_layers: layers with a sliding window.
        is_exact: whether an export gives these sizes.
        notes: what was assumed, and what edge-rt cannot do yet: sentences for the user.
    """

    config: ModelConfig
    op_profile: str
    weights_bytes: int
    embedding_bytes: int
    tokenizer_bytes: int
    window_layers: int
    is_exact: bool
    notes: tuple[str, ...] = ()


def foresee_gguf(path: Path) -> Foreseen:
    """Return the package that a GGUF file would become.

    Raises:
        InvalidModelFile: the file is malformed.
        UnsupportedModel: its architecture is unknown, and its header has not the usual numbers either.
        StorageError: it cannot be read.
    """
    header = read_header(path)
    try:
        config = read_config(header)
    except UnsupportedModel as error:
        return _foresee_foreign(header, error)
    # Laying weights out needs numpy, and judging a file does not.
    from edge_rt.export.gguf_tokenizer import build_tokenizer
    from edge_rt.export.llama_graph import collect_weights, place_weights
    from edge_rt.export.profile import choose_profile

    profile = choose_profile(None, "int8", library_path(), config)
    weights = collect_weights(header, config, profile)
    layout = place_weights(weights, config, profile)
    embedding = 0
    if not config.tied_embedding:
        embedding = sum(slot.nbytes for name, slot in layout.slots.items() if name.startswith("embedding."))
    tokenizer = build_tokenizer(header.metadata, config.vocab_size)
    parameters = sum(part.tensor.elements for linear in weights.linears() for part in linear.parts)
    return Foreseen(
        config=config.to_model_config(parameters),
        op_profile=profile.name,
        weights_bytes=layout.size,
        embedding_bytes=embedding,
        tokenizer_bytes=len(tokenizer.json_text.encode("utf-8", "surrogatepass")),
        window_layers=config.num_layers if config.sliding_window else 0,
        is_exact=True,
    )


def is_checkpoint_folder(path: Path) -> bool:
    """Tell whether a folder holds a model's configuration and weights as the hub keeps them."""
    try:
        return (path / CONFIG_FILE).is_file() and next(path.glob(WEIGHTS_PATTERN), None) is not None
    except OSError:
        return False


def foresee_folder(folder: Path) -> Foreseen:
    """Return the package that ``config.json`` and ``*.safetensors`` would become; only headers are read.

    Raises:
        InvalidModelFile: a file is malformed.
        UnsupportedModel: the configuration has not the usual numbers.
        StorageError: a file cannot be read.
    """
    document = _read_config(folder / CONFIG_FILE)
    # Models that see or hear keep the numbers of their language model apart.
    text = document.get("text_config")
    numbers = {**document, **text} if isinstance(text, dict) else document
    shapes = _shapes(folder)
    architectures = document.get("architectures")
    name = str(architectures[0] if isinstance(architectures, list) and architectures else "unknown")
    kind = str(numbers.get("model_type", name))
    tied = bool(numbers.get("tie_word_embeddings", not any("lm_head" in key for key in shapes)))
    windows, window_layers = _windows(numbers)
    config = _config(
        folder.name,
        kind,
        hidden=numbers.get("hidden_size"),
        layers=numbers.get("num_hidden_layers"),
        heads=numbers.get("num_attention_heads"),
        kv_heads=numbers.get("num_key_value_heads"),
        head_dim=numbers.get("head_dim"),
        inner=numbers.get("intermediate_size"),
        vocabulary=numbers.get("vocab_size"),
        context=numbers.get("max_position_embeddings"),
        window=windows,
        tied=tied,
        shapes=shapes,
        where=f"{folder.name}/{CONFIG_FILE}",
    )
    notes = [f"Estimated from headers: {MATRIX_BITS}; edge-rt exports GGUF files, not safetensors, so far."]
    if kind not in ARCHITECTURES:
        notes.append(f"edge-rt cannot run the architecture {kind:.40} yet ({name:.60}).")
    tokenizer = folder / "tokenizer.json"
    size = tokenizer.stat().st_size if tokenizer.is_file() else _JSON_TOKEN_BYTES * config.vocab_size
    return _estimated(config, shapes, size, window_layers, tuple(notes))


def _foresee_foreign(header: GGUFHeader, error: UnsupportedModel) -> Foreseen:
    """Return an estimate for a GGUF file that cannot be exported."""
    values = header.values
    kind = str(values.get("general.architecture", "unknown"))

    def number(key: str) -> Any:
        return values.get(f"{kind}.{key}")

    # The last axis comes first in a GGUF file.
    shapes = {name: tuple(reversed(tensor.shape)) for name, tensor in header.tensors.items()}
    embedding = shapes.get("token_embd.weight", ())
    window = number("attention.sliding_window")
    config = _config(
        str(values.get("general.name", header.path.stem))[:200],
        kind,
        hidden=number("embedding_length"),
        layers=number("block_count"),
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"),
        head_dim=number("attention.key_length"),
        inner=number("feed_forward_length"),
        vocabulary=number("vocab_size") or (max(embedding) if embedding else None),
        context=number("context_length"),
        window=window if isinstance(window, int) else 0,
        tied="output.weight" not in shapes,
        shapes=shapes,
        where=header.path.name,
    )
    notes = (f"edge-rt cannot run this model yet: {error.what}", f"Estimated from the header: {MATRIX_BITS}.")
    return _estimated(config, shapes, _JSON_TOKEN_BYTES * config.vocab_size, 0, notes)


def _estimated(
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    tokenizer: int,
    window_layers: int,
    notes: tuple[str, ...],
) -> Foreseen:
    total, embedding = 0, 0
    for name, shape in shapes.items():
        is_outer = _is_embedding(name) or _is_head(name)
        size = _tensor_bytes(shape, _BYTES_8_BIT if is_outer else _BYTES_4_BIT)
        if _is_head(name) and config.tied_embedding:
            continue
        if _is_embedding(name) and not config.tied_embedding:
            embedding = size
        total += -(-size // _PAGE) * _PAGE if size >= 16 * _PAGE else size
    total += 2 * 4 * config.context_length * (config.head_dim // 2)
    fits = config.head_dim <= MAX_HEAD_DIM and config.head_dim % 2 == 0 and config.num_heads <= MAX_HEADS
    return Foreseen(config, "native" if fits else "portable", total, embedding, tokenizer, window_layers, False, notes)


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed_tokens", "token_embd", "wte.", "word_embeddings."))


def _is_head(name: str) -> bool:
    return "lm_head" in name or name == "output.weight"


def _tensor_bytes(shape: tuple[int, ...], block_bytes: int) -> int:
    """Return the bytes of a tensor in tiles of 16 rows and blocks of 32 columns; of a vector in float32."""
    if len(shape) < 2:
        return 4 * math.prod(shape)
    *outer, rows, columns = shape
    return math.prod(outer) * -(-rows // _TILE_ROWS) * -(-columns // _BLOCK) * block_bytes


def _config(
    name: str,
    kind: str,
    *,
    hidden: Any,
    layers: Any,
    heads: Any,
    kv_heads: Any,
    head_dim: Any,
    inner: Any,
    vocabulary: Any,
    context: Any,
    window: int,
    tied: bool,
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> ModelConfig:
    """Return the numbers, checked; those that may be left out have the usual defaults."""

    def require(field: str, value: Any, most: int = _HUGE) -> int:
        if isinstance(value, list):  # of some architectures every layer has its own
            value = max((item for item in value if type(item) is int), default=None)
        if type(value) is not int or not 1 <= value <= most:
            raise UnsupportedModel(
                f"{where}: the size of this model cannot be told.",
                f"{field} is {value!r:.40}, must be a number from 1 to {most}.",
                "Give a model whose configuration has the usual fields.",
            )
        return value

    width, count = require("hidden size", hidden), require("number of heads", heads, 1 << 16)
    pairs = count if kv_heads is None else require("number of key-value heads", kv_heads, count)
    dim = width // count if head_dim is None else require("head size", head_dim, 1 << 16)
    return ModelConfig(
        name=name,
        architecture=kind,
        hidden_size=width,
        num_layers=require("number of layers", layers, _MAX_LAYERS),
        num_heads=count,
        num_kv_heads=pairs,
        head_dim=max(2, dim),
        intermediate_size=require("feed-forward size", inner),
        vocab_size=require("vocabulary", vocabulary, 1 << 28),
        context_length=require("context", context, _MAX_CONTEXT),
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        rope_scaling="none",
        tied_embedding=tied,
        num_parameters=max(1, sum(map(math.prod, shapes.values()))),
        sliding_window=window,
    )


def _windows(numbers: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sliding window, and how many layers have it."""
    window, layers = numbers.get("sliding_window"), numbers.get("num_hidden_layers")
    if type(window) is not int or window < 1 or numbers.get("use_sliding_window") is False or type(layers) is not int:
        return 0, 0
    kinds = numbers.get("layer_types")
    count = sum(kind == "sliding_attention" for kind in kinds) if isinstance(kinds, list) else layers
    return (window, min(count, layers)) if count else (0, 0)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    try:
        document = json.loads(data) if len(data) <= _MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"{error}") from error
    if not isinstance(document, dict):
        raise _malformed(path, "it holds no JSON object of reasonable size")
    return document


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors, from the headers of the folder's files."""
    result: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob(WEIGHTS_PATTERN)):
        result |= _header_shapes(path)
    return result


def _header_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= _MAX_HEADER_BYTES:
                raise _malformed(path, f"its header says {length} bytes")
            data = stream.read(length)
            if len(data) < length:
                raise _malformed(path, f"its header says {length} bytes, {len(data)} are there")
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    try:
        document: Any = json.loads(data)
        entries = {name: entry["shape"] for name, entry in document.items() if name != "__metadata__"}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise _malformed(path, f"its header cannot be read ({type(error).__name__})") from error
    for name, shape in entries.items():
        if not _is_shape(shape):
            raise _malformed(path, f"the shape of {name!r:.60} is {shape!r:.60}")
    return {name: tuple(shape) for name, shape in entries.items()}


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list) or len(shape) > _MAX_AXES:
        return False
    product = 1
    for count in shape:
        if type(count) is not int or not 0 <= count <= _HUGE:
            return False
        product *= count
    return product <= _HUGE


def _malformed(path: Path, reason: str) -> InvalidModelFile:
    return InvalidModelFile(f"{path.name} is malformed.", f"{reason[:200]}.", "Fetch the model again.")
