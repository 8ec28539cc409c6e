"""Estimates the size of a package from a checkpoint's headers alone; nothing is loaded or written.

For a checkpoint that can be exported the sizes are exact. Anything else is estimated as if it could be exported.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edge_rt.errors import UnsupportedModel
from edge_rt.export.opening import PlacedCheckpoint, place_checkpoint
from edge_rt.export.sizes.folder import estimate_foreign_folder
from edge_rt.export.sizes.gguf import estimate_foreign_gguf
from edge_rt.export.sizes.size import SizeEstimate
from edge_rt.export.sources.gguf_split import read_gguf
from edge_rt.package.manifest import config_of
from edge_rt.package.weights_info import require_known


def estimate_package(path: Path, *, weights: str | None = None) -> SizeEstimate:
    """Return the package that a checkpoint would become.

    Args:
        path: a GGUF file, any part of a split one, or a folder with ``config.json`` and safetensors.
        weights: types of the matrices, as in ``edge_rt.export.export_model``; what cannot be exported is estimated in
            4 bits, whatever is asked for.

    Raises:
        ConfigError: ``weights`` is unknown.
        InvalidModelFile: a file is malformed, or part of the weights is missing.
        ModelNotFound: a file is missing.
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
    """Return the sizes that an export gives.

    Raises:
        UnsupportedModel: it cannot be exported.
    """
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
