"""The tensors that a llama checkpoint must have: names, shapes, types."""

from __future__ import annotations

from collections.abc import Mapping

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.families.llama_config import LlamaConfig
from edge_rt.export.sources.gguf_types import EXPORTABLE_TYPES, FETCH_AGAIN, GGUFHeader, TensorInfo

FLOAT_VECTORS = ("F32", "F16", "BF16")
"""Types of norms and other vectors."""


def required_tensor(header: GGUFHeader, name: str) -> TensorInfo:
    """Return a tensor that every checkpoint has.

    Raises:
        InvalidModelFile: it is missing.
    """
    try:
        return header.tensors[name]
    except KeyError:
        raise InvalidModelFile(
            f"{header.path.name}: the tensor '{name}' is missing.",
            f"The file has {len(header.tensors)} other tensors.",
            FETCH_AGAIN,
        ) from None


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return tensor name -> shape in ggml order (innermost dimension first) of a complete checkpoint."""
    width, q_rows, kv_rows = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, config.vocab_size),
        "output_norm.weight": (width,),
    }
    if not config.tied_embedding:
        shapes["output.weight"] = (width, config.vocab_size)
    for layer in range(config.num_layers):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (width,),
            f"blk.{layer}.attn_q.weight": (width, q_rows),
            f"blk.{layer}.attn_k.weight": (width, kv_rows),
            f"blk.{layer}.attn_v.weight": (width, kv_rows),
            f"blk.{layer}.attn_output.weight": (q_rows, width),
            f"blk.{layer}.ffn_norm.weight": (width,),
            f"blk.{layer}.ffn_gate.weight": (width, config.intermediate_size),
            f"blk.{layer}.ffn_up.weight": (width, config.intermediate_size),
            f"blk.{layer}.ffn_down.weight": (config.intermediate_size, width),
        }
    return shapes


def check_shapes(where: str, tensors: Mapping[str, TensorInfo], config: LlamaConfig) -> None:
    """Collect every missing or misshapen tensor and raise once.

    Args:
        where: name of the checkpoint, for the error.
        tensors: by the names that GGUF files have.
        config: dimensions of the model.

    Raises:
        InvalidModelFile: tensors are missing or misshapen.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise InvalidModelFile(f"{where}: {len(missing)} tensors are missing.", f"{listed(missing)}.", FETCH_AGAIN)
    wrong = [
        f"{name} {tensors[name].shape} instead of {shape}"
        for name, shape in (expected | optional_shapes(config)).items()
        if name in tensors and tensors[name].shape != shape
    ]
    if wrong:
        raise InvalidModelFile(f"{where}: {len(wrong)} tensors have a wrong shape.", f"{listed(wrong)}.", FETCH_AGAIN)


def optional_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return tensor name -> shape of what a checkpoint may have besides."""
    return {"rope_freqs.weight": (config.head_dim // 2,)}


def check_tensors(header: GGUFHeader, config: LlamaConfig) -> None:
    """Collect every missing, misshapen or surplus tensor and raise once.

    Raises:
        InvalidModelFile: tensors are missing or misshapen.
        UnsupportedModel: there are surplus tensors, or types that cannot be exported.
    """
    check_shapes(header.path.name, header.tensors, config)
    expected, optional = expected_shapes(config), optional_shapes(config)
    surplus = [name for name in header.tensors if name not in expected and name not in optional]
    if surplus:
        raise UnsupportedModel(
            f"{header.path.name}: the model has {len(surplus)} tensors that this architecture does not use.",
            f"{listed(surplus)}.",
            "It is a variant that edge-rt cannot run yet; choose another model.",
        )
    _check_types(header, expected | {name: shape for name, shape in optional.items() if name in header.tensors})


def _check_types(header: GGUFHeader, expected: Mapping[str, tuple[int, ...]]) -> None:
    vectors = [
        n for n, shape in expected.items() if len(shape) == 1 and header.tensors[n].type_name not in FLOAT_VECTORS
    ]
    matrices = [
        f"{n} is {header.tensors[n].type_name}"
        for n, shape in expected.items()
        if len(shape) == 2 and header.tensors[n].type_name not in EXPORTABLE_TYPES
    ]
    if vectors or matrices:
        raise UnsupportedModel(
            f"{header.path.name}: the quantisation of {len(vectors) + len(matrices)} tensors is not supported.",
            f"{listed(matrices or vectors)}; supported: {', '.join(EXPORTABLE_TYPES)}.",
            "Choose a file in one of the supported quantisations.",
        )


def listed(items: list[str], limit: int = 5) -> str:
    """Return the first items as text, and how many more there are."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
