"""Opens a drafter: reads and checks its description, its files and its vocabulary."""

from __future__ import annotations

import array
import hashlib
import re
import sys
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidDrafter, ModelNotFound, StorageError, UnsupportedModel, VersionMismatch, as_json
from edge_rt.package.documents import Refusal, build, check_files, parse_document, read_bounded
from edge_rt.package.drafter import (
    DRAFTER_FILE,
    EXIT,
    FORMAT_NAME,
    FORMAT_VERSION,
    KINDS,
    MAX_DRAFTER_BYTES,
    WEIGHTS_FILE,
    DrafterInfo,
    TrainedDrafter,
    refusal,
)
from edge_rt.package.drafter_tensors import VOCABULARY, check_tensors, head_tensors
from edge_rt.package.exits import MAX_EXITS
from edge_rt.package.manifest import MANIFEST_FILE

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_LARGEST: Final = 1 << 24  # of a dimension
_MOST: Final = 10**15  # of what is only shown
_LARGEST_SEED: Final = (1 << 64) - 1
_MOST_POSITIONS: Final = 16


def is_drafter(path: Path) -> bool:
    """Return whether the folder holds a drafter's description (nothing else is checked); False if it cannot be read."""
    try:
        return (path / DRAFTER_FILE).is_file()
    except OSError:
        return False


def open_drafter(path: Path) -> TrainedDrafter:
    """Read and check the description, the presence and size of every file, the places of tensors, and the vocabulary.

    Hashes are checked by ``Drafter.verify``.
    """
    path = Path(path).absolute()
    try:
        return _open_drafter(path)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error


def _not_a_drafter(path: Path, refuse: Refusal) -> Exception:
    if path.is_file():
        return InvalidDrafter(
            f"{path} is a file.", "A drafter is a folder.", f"Give the folder that holds {DRAFTER_FILE}."
        )
    if (path / MANIFEST_FILE).is_file():
        return InvalidDrafter(
            f"{path} is a package, not a trained drafter.",
            f"It holds {MANIFEST_FILE}, but no {DRAFTER_FILE}.",
            f"Draft with the package: --spec model:{path}.",
        )
    return refuse("this is not a drafter.", f"It holds no {DRAFTER_FILE}.")


def _open_drafter(path: Path) -> TrainedDrafter:
    if not path.exists():
        raise ModelNotFound(f"There is no drafter at {path}.", "", "Check the path.")
    refuse = refusal(path)
    description = path / DRAFTER_FILE
    if description.is_symlink() or not description.is_file():
        raise _not_a_drafter(path, refuse)
    data = read_bounded(description, MAX_DRAFTER_BYTES, refuse, name="description")
    document = parse_document(data, FORMAT_NAME, refuse, name="description", owner="a drafter's")
    _check_version(path, document, refuse)
    document.pop("format")
    info = build(DrafterInfo, document, "drafter", refuse)
    _check_values(info, refuse)
    check_files(path, info.files, refuse, noun="drafter")
    if WEIGHTS_FILE not in info.files:
        raise refuse(f"the description does not list {WEIGHTS_FILE}.", f"Files: {', '.join(info.files)!s:.200}.")
    try:
        wanted = head_tensors(info.head, info.target.hidden_size, info.layers)
    except ValueError as error:
        raise refuse("'drafter.head' contradicts itself.", f"{error}.".capitalize()) from error
    check_tensors(info.head.tensors, wanted, info.files[WEIGHTS_FILE].size, refuse)
    return TrainedDrafter(path, info, hashlib.sha256(data).hexdigest(), _vocabulary(path, info, refuse))


def _check_version(path: Path, document: dict[str, Any], refuse: Refusal) -> None:
    found = document.get("format_version")
    if not isinstance(found, int) or isinstance(found, bool):
        raise refuse("'format_version' is missing or not a number.", f"Found {as_json(found)}.")
    if found != FORMAT_VERSION:
        raise VersionMismatch(
            f"{path}: the drafter has format_version {found!s:.20}, this edge-rt reads {FORMAT_VERSION}.",
            f"It was written by {document.get('producer', 'an unknown program')!s:.80}.",
            "Install the version that wrote it, or train the drafter again.",
        )
    # Drafters of other kinds have other fields: what they are is said before what is missing.
    kind = document.get("kind")
    if isinstance(kind, str) and kind not in KINDS:
        raise UnsupportedModel(
            f"{path}: this edge-rt cannot run a drafter of this kind.",
            f"Found {kind!r:.40}, supported: {', '.join(KINDS)}.",
            "Install a newer version, or train another drafter.",
        )


def _check_values(info: DrafterInfo, refuse: Refusal) -> None:
    """Check what the runtime relies on and types alone do not guarantee."""
    target, head, training, measured = info.target, info.head, info.training, info.acceptance
    for name, text, pattern, wanted in (
        ("name", info.name, _NAME, "letters, digits, '.', '_' and '-'"),
        ("target.source_sha256", target.source_sha256, _SHA256, "a SHA-256"),
        ("target.tokenizer_sha256", target.tokenizer_sha256, _SHA256, "a SHA-256"),
    ):
        if not pattern.fullmatch(text):
            raise refuse(f"'drafter.{name}' is out of range.", f"Found {text!r:.80}, wanted {wanted}.")
    limits: tuple[tuple[str, float, float, float], ...] = (
        ("target.hidden_size", target.hidden_size, 1, _LARGEST),
        ("target.vocab_size", target.vocab_size, 1, _LARGEST),
        ("target.num_layers", target.num_layers, 1, _LARGEST),
        ("head.blocks", head.blocks, 1, _LARGEST),
        ("head.intermediate_size", head.intermediate_size, 1, _LARGEST),
        ("head.vocabulary_size", head.vocabulary_size, 1, target.vocab_size),
        ("head.epsilon", head.epsilon, 0, 1),
        ("training.tokens", training.tokens, 0, _MOST),
        ("training.epochs", training.epochs, 0, _MOST),
        ("training.steps", training.steps, 0, _MOST),
        ("training.seed", training.seed, 0, _LARGEST_SEED),
        ("training.hours", training.hours, 0, _MOST),
        ("acceptance.tokens", measured.tokens, 0, _MOST),
        ("acceptance.top2", measured.top2, 0, 1),
        ("acceptance.top4", measured.top4, 0, 1),
        *((f"acceptance.positions[{i}]", share, 0, 1) for i, share in enumerate(measured.positions)),
        *((f"exits[{i}].top1", one.top1, 0, 1) for i, one in enumerate(info.exits)),
        *((f"exits[{i}].top2", one.top2, 0, 1) for i, one in enumerate(info.exits)),
        *((f"exits[{i}].top4", one.top4, 0, 1) for i, one in enumerate(info.exits)),
    )
    for name, value, least, most in limits:
        if not least <= value <= most:
            raise refuse(f"'drafter.{name}' is out of range.", f"Found {value!s:.40}, wanted {least} to {most}.")
    if not 1 <= len(measured.positions) <= _MOST_POSITIONS:
        numbers = f"Found {len(measured.positions)}, wanted 1 to {_MOST_POSITIONS}."
        raise refuse("'drafter.acceptance.positions' has the wrong length.", numbers)
    if len(info.exits) > MAX_EXITS or bool(info.exits) != (info.kind == EXIT):
        wanted = f"1 to {MAX_EXITS}" if info.kind == EXIT else "none"
        numbers = f"Found {len(info.exits)}; a drafter of the kind {info.kind} has {wanted}."
        raise refuse("'drafter.exits' has the wrong length.", numbers)
    rising = all(before < after for before, after in zip([0, *info.layers], info.layers, strict=False))
    if not rising or (info.layers and info.layers[-1] >= target.num_layers):
        numbers = f"Found {list(info.layers)!s:.80}; the model has {target.num_layers} layers."
        raise refuse("'drafter.exits' do not lie between the model's layers in rising order.", numbers)


def _vocabulary(path: Path, info: DrafterInfo, refuse: Refusal) -> tuple[int, ...]:
    """Return the ids of the tokens that can be guessed: different ones, all of them the model's."""
    place = info.head.tensors[VOCABULARY]
    with (path / WEIGHTS_FILE).open("rb") as stream:
        stream.seek(place.offset)
        ids = array.array("i", stream.read(place.length))
    if sys.byteorder == "big":
        ids.byteswap()
    found = tuple(ids)
    if len(set(found)) < len(found):
        raise refuse("the vocabulary names a token twice.", f"{len(found) - len(set(found))} of {len(found)} ids.")
    least, most = min(found), max(found)
    if least < 0 or most >= info.target.vocab_size:
        numbers = f"Found {least} to {most}, the model has {info.target.vocab_size} tokens."
        raise refuse("the vocabulary names tokens that the model does not have.", numbers)
    return found
