"""Estimates the size of a package from a checkpoint's headers alone; nothing is loaded or written.

For a checkpoint that can be exported the sizes are exact. Anything else is estimated as if it could be exported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InputError, InvalidModelFile, ModelNotFound, UnsupportedModel
from edge_rt.export.families.registry import MODEL_TYPES, is_encoder, require_decoder
from edge_rt.export.opening import PlacedCheckpoint, place_checkpoint
from edge_rt.export.sources.gguf_split import read_gguf
from edge_rt.export.sources.gguf_types import GGUFHeader
from edge_rt.export.sources.hf_folder import MAX_JSON_BYTES
from edge_rt.export.sources.packed_config import read_packed_settings
from edge_rt.export.sources.safetensors_header import WEIGHTS_PATTERN, read_json, read_tensors
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import ModelConfig, config_of
from edge_rt.package.op_list import MAX_HEAD_DIM, MAX_HEADS
from edge_rt.package.weights_info import require_known
from edge_rt.system.checkpoint_names import CONFIG_FILE, TOKENIZER_FILE

MATRIX_BITS: Final = "matrices in 4 bits (blocks of 32 with scale and minimum), embedding and head in 8 bits"
"""Assumption for packages that cannot be exported yet."""
JSON_TOKEN_BYTES: Final = 42
"""Of a tokenizer.json, for each token: measured 32 to 43."""

_TILE_ROWS, _BLOCK = 16, 32
_BYTES_4_BIT, _BYTES_8_BIT = 320, 544  # of a block of a tile, for packed Q4_1 and Q8_0
_PAGE: Final = 4096
_MAX_LAYERS: Final = 4096
_MAX_CONTEXT: Final = 1 << 24
_HUGE: Final = 1 << 40


@dataclass(frozen=True)
class SizeEstimate:
    """The dimensions and sizes of a package that does not exist.

    Attributes:
        weights_bytes: of its ``weights.bin``.
        embedding_bytes: of a token embedding that is not shared with the head; 0 if it is.
        tokenizer_bytes: of its ``tokenizer.json``.
        is_exact: whether an export gives these sizes.
        notes: what was assumed, and what edge-rt cannot do yet: sentences for the user.
        decoder: the description, if the model can be exported.
    """

    config: ModelConfig
    op_profile: str
    weights_bytes: int
    embedding_bytes: int
    tokenizer_bytes: int
    window_layers: int
    is_exact: bool
    notes: tuple[str, ...] = ()
    decoder: Decoder | None = None


def estimated(
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    tokenizer: int,
    window_layers: int,
    notes: tuple[str, ...],
) -> SizeEstimate:
    """Return the estimate for tensors of these shapes.

    Args:
        shapes: of its tensors, outermost dimension first, by name.
        tokenizer: bytes of its ``tokenizer.json``.
    """
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
    if fits:  # constants of 4-bit keys
        total += 4 * config.num_layers * config.num_kv_heads * config.head_dim * (2 + config.head_dim)
    return SizeEstimate(
        config, "native" if fits else "portable", total, embedding, tokenizer, window_layers, False, notes
    )


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed_tokens", "token_embd", "wte.", "word_embeddings."))


def _is_head(name: str) -> bool:
    return "lm_head" in name or name == "output.weight"


def _tensor_bytes(shape: tuple[int, ...], block_bytes: int) -> int:
    """Return the bytes of a matrix in tiles of 16 rows and blocks of 32 columns, or of a vector in float32."""
    if len(shape) < 2:
        return 4 * math.prod(shape)
    *outer, rows, columns = shape
    return math.prod(outer) * -(-rows // _TILE_ROWS) * -(-columns // _BLOCK) * block_bytes


def checked_config(
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
    """Return the checked dimensions; fields that may be left out get the usual defaults.

    Raises:
        UnsupportedModel: a field is missing or out of range; ``where`` names the file.
    """

    def require(field: str, value: Any, most: int = _HUGE) -> int:
        if isinstance(value, list):  # in some architectures every layer has a value of its own
            value = max((item for item in value if type(item) is int), default=None)
        if type(value) is not int or not 1 <= value <= most:
            raise UnsupportedModel(
                f"{where}: the size of this model cannot be estimated.",
                f"It states no {field}."
                if value is None
                else f"The {field} is {value!r:.40}, must be a number from 1 to {most}.",
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


_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.([0-9]{1,6})\.")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_FULL_LAYER_EVERY: Final = {"gemma2": 2, "gemma3_text": 6}
"""Kind of model -> n: one in n layers has no window, if the configuration does not say."""
_QWEN_WINDOW_FROM: Final = 28  # the first windowed layer of its family, if the configuration does not say


def estimate_foreign_folder(folder: Path, refusal: UnsupportedModel) -> SizeEstimate:
    """Return the package that ``config.json`` and ``*.safetensors`` would become; only headers are read.

    Args:
        refusal: why they cannot be exported.

    Raises:
        InvalidModelFile: a file is malformed, or part of the weights is missing.
        UnsupportedModel: the configuration lacks the usual fields.
        StorageError: a file cannot be read.
    """
    document = read_json(folder / CONFIG_FILE, MAX_JSON_BYTES)
    require_decoder(folder.name, document)
    if next(folder.glob(WEIGHTS_PATTERN), None) is None:
        raise ModelNotFound(
            f"{folder} holds no weights.",
            f"{CONFIG_FILE} is there, {WEIGHTS_PATTERN} is missing.",
            "Fetch the model's safetensors files, too, or give a GGUF file.",
        )
    # Multimodal models keep the configuration of their language model in a section of its own.
    text = document.get("text_config")
    numbers = {**document, **text} if isinstance(text, dict) else document
    tensors = read_tensors(folder)
    shapes = tensors.shapes
    architectures = document.get("architectures")
    name = str(architectures[0] if isinstance(architectures, list) and architectures else "unknown")
    kind = str(numbers.get("model_type", name))
    tied = bool(numbers.get("tie_word_embeddings", not any("lm_head" in key for key in shapes)))
    windows, window_layers = _windows(numbers, kind)
    config = checked_config(
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
    _require_layers(folder, config, shapes)
    notes = [f"Estimated from headers: {MATRIX_BITS}."]
    if kind in MODEL_TYPES:
        notes.append(f"edge-rt cannot run this model yet: {refusal.what} {refusal.numbers}")
    else:
        notes.append(f"edge-rt cannot run the architecture {kind:.40} yet ({name:.60}).")
    experts = max((value for key in _EXPERTS if type(value := numbers.get(key)) is int), default=0)
    if tensors.are_packed:
        if experts > 1:
            raise UnsupportedModel(
                f"{folder.name}: the size of this model cannot be estimated.",
                f"It has {experts} experts in each layer, and its matrices are quantised already.",
                "Give the checkpoint that it was quantised from.",
            )
        shapes = _usual_shapes(config)
        config = replace(config, num_parameters=sum(map(math.prod, shapes.values())))
        notes.append(
            f"These weights are quantised already{_packing(folder.name, document)}: sizes are those of a usual "
            f"model with the dimensions in {CONFIG_FILE}."
        )
    elif experts > 1:
        notes.append(
            f"A mixture of {experts} experts, which edge-rt cannot run yet: all of them are counted as weights, and as "
            "read for every token, though a token needs only some; what passes take is that of a dense model."
        )
    tokenizer = folder / TOKENIZER_FILE
    size = tokenizer.stat().st_size if tokenizer.is_file() else JSON_TOKEN_BYTES * config.vocab_size
    return estimated(config, shapes, size, window_layers, tuple(notes))


def _packing(name: str, document: Mapping[str, Any]) -> str:
    """Return a remark about weights that are packed in a way that edge-rt does not read; empty if it does."""
    try:
        found = read_packed_settings(name, document)
    except InputError:
        found = None
    return "" if found is not None else ", in a form that edge-rt does not read"


def _require_layers(folder: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that lack whole layers; weights with other names for layers are not checked."""
    found = {int(match[1]) for name in shapes if (match := _LAYER.search(name))}
    missing = [layer for layer in range(config.num_layers) if layer not in found] if found else []
    if missing or not shapes:
        count = f"{len(missing)} of {config.num_layers} layers" if shapes else "All tensors"
        raise InvalidModelFile(
            f"{folder.name} lacks weights of the model that {CONFIG_FILE} describes.",
            f"{count} are missing" + (f", the first is layer {missing[0]}." if missing else "."),
            "Fetch the model again, all of its files.",
        )


def _usual_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a llama-like model with these dimensions."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, pairs = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (config.vocab_size, hidden), "norm": (hidden,)}
    if not config.tied_embedding:
        shapes["lm_head"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        shapes |= {
            f"{layer}.q": (heads, hidden), f"{layer}.k": (pairs, hidden), f"{layer}.v": (pairs, hidden),
            f"{layer}.o": (hidden, heads), f"{layer}.gate": (inner, hidden), f"{layer}.up": (inner, hidden),
            f"{layer}.down": (hidden, inner), f"{layer}.norm": (hidden,), f"{layer}.other_norm": (hidden,),
        }  # fmt: skip
    return shapes


def _windows(numbers: Mapping[str, Any], kind: str) -> tuple[int, int]:
    """Return the sliding window, and how many layers have it."""
    window, layers = numbers.get("sliding_window"), numbers.get("num_hidden_layers")
    is_qwen = kind.startswith(("qwen2", "qwen3"))
    used = numbers.get("use_sliding_window", not is_qwen)
    if type(window) is not int or window < 1 or not used or type(layers) is not int:
        return 0, 0
    kinds = numbers.get("layer_types")
    pattern = numbers.get("sliding_window_pattern", _FULL_LAYER_EVERY.get(kind))
    first = numbers.get("max_window_layers", _QWEN_WINDOW_FROM if is_qwen else 0)
    if isinstance(kinds, list):
        count = sum(kind == "sliding_attention" for kind in kinds)
    elif type(pattern) is int and pattern > 0:
        count = layers - layers // pattern
    else:
        # Earlier layers have full attention, whatever the name says.
        count = layers - first if type(first) is int and first >= 0 else layers
    return (window, min(count, layers)) if count > 0 else (0, 0)


def estimate_foreign_gguf(header: GGUFHeader, refusal: UnsupportedModel) -> SizeEstimate:
    """Return the package that a GGUF file would become.

    Args:
        refusal: why it cannot be exported.

    Raises:
        UnsupportedModel: the header lacks the usual keys.
    """
    values = header.values
    kind = str(values.get("general.architecture", "unknown"))
    if is_encoder(kind):
        raise refusal

    def number(key: str) -> Any:
        return values.get(f"{kind}.{key}")

    # The last axis comes first in a GGUF file.
    shapes = {name: tuple(reversed(tensor.shape)) for name, tensor in header.tensors.items()}
    embedding = shapes.get("token_embd.weight", ())
    window = number("attention.sliding_window")
    config = checked_config(
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
    notes = (f"edge-rt cannot run this model yet: {refusal.what}", f"Estimated from the header: {MATRIX_BITS}.")
    return estimated(config, shapes, JSON_TOKEN_BYTES * config.vocab_size, 0, notes)


def estimate_package(path: Path, *, weights: str | None = None) -> SizeEstimate:
    """Return the package that a checkpoint would become.

    Args:
        path: a GGUF file, any part of a split one, or a folder with ``config.json`` and safetensors.
        weights: types of the matrices, as in ``edge_rt.export.export_model``; what cannot be exported is estimated in
            4 bits, whatever is asked for.

    Raises:
        InvalidModelFile: a file is malformed, or part of the weights is missing.
        UnsupportedModel: it cannot be exported, and its headers lack what an estimate needs.
        StorageError: a file cannot be read.
    """
    require_known(weights)
    try:
        return _exact(path, weights)
    except UnsupportedModel as error:
        found = _foreign(path, error)
        if weights is None:
            return found
        return replace(found, notes=(*found.notes, f"Estimated in 4 bits: weights {weights} were not counted."))


def _foreign(path: Path, refusal: UnsupportedModel) -> SizeEstimate:
    """Return the size of what cannot be exported, for the reason that is given.

    Raises:
        UnsupportedModel: its size cannot be told either; the error is that of the refusal, which says what helps.
    """
    try:
        return (
            estimate_foreign_folder(path, refusal) if path.is_dir() else estimate_foreign_gguf(read_gguf(path), refusal)
        )
    except UnsupportedModel as error:
        if error is refusal or error.what == refusal.what:
            raise
        raise UnsupportedModel(refusal.what, f"{error.what} {error.numbers}", refusal.action) from error


def _exact(path: Path, weights: str | None) -> SizeEstimate:
    """Return the sizes that an export gives."""
    placed = place_checkpoint(path, weights=weights)
    decoder, slots = placed.decoder, placed.layout.slots
    embedding = 0
    if not decoder.is_tied:
        embedding = sum(slot.nbytes for name, slot in slots.items() if name.startswith("embedding."))
    tokenizer = placed.source.build_tokenizer(decoder.vocab_size)
    return SizeEstimate(
        config=config_of(decoder, sum(tensor.elements for tensor in placed.source.tensors.values())),
        op_profile=placed.profile.name,
        weights_bytes=placed.layout.size,
        embedding_bytes=embedding,
        tokenizer_bytes=len(tokenizer.json_text.encode("utf-8", "surrogatepass")),
        window_layers=sum(window > 0 for window in decoder.layer_windows),
        is_exact=True,
        decoder=decoder,
        notes=_notes(placed, weights),
    )


def _notes(placed: PlacedCheckpoint, weights: str | None) -> tuple[str, ...]:
    """Return a remark if weights become fewer bits without being asked to."""
    if weights is not None or placed.choice.name != "int4":
        return ()
    bits = 8 * placed.layout.size / sum(tensor.elements for tensor in placed.source.tensors.values())
    text = f"An export makes 4 bits of these floats ({bits:.1f} bits a weight, embedding and head included)"
    return (f"{text}; --weights int8, f16, f32 or keep chooses otherwise.",)
