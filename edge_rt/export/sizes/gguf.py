"""The size of a package that a GGUF file would become if edge-rt could run its model: from its header alone."""

from __future__ import annotations

from typing import Any

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.registry import is_encoder
from edge_rt.export.sizes.size import JSON_TOKEN_BYTES, MATRIX_BITS, SizeEstimate, checked_config, estimated
from edge_rt.export.sources.gguf_types import GGUFHeader


def estimate_foreign_gguf(header: GGUFHeader, refusal: UnsupportedModel) -> SizeEstimate:
    """Return the package that a GGUF file would become.

    Args:
        header: of the file.
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
