"""``drafter.json`` as dataclasses: the description of a trained drafter, as in ``docs/drafter-format.md``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from edge_rt.errors import InvalidDrafter
from edge_rt.package.documents import FileInfo, Refusal, verify_files
from edge_rt.package.manifest import Manifest

FORMAT_NAME: Final = "edge-rt drafter"
FORMAT_VERSION: Final = 1
"""Layout of the folder and of ``drafter.json``; raised when an older reader would misread a drafter."""
HEAD: Final = "head"
EXIT: Final = "exit"
KINDS: Final = (HEAD, EXIT)
"""Kinds of drafters that this version reads: a recurrent head behind the last layer, adapters behind early exits."""

DRAFTER_FILE: Final = "drafter.json"
WEIGHTS_FILE: Final = "weights.bin"
DRAFTERS_FOLDER: Final = "drafters"
"""Folder of a package, and of the installed models, that holds a folder for each drafter."""
MAX_DRAFTER_BYTES: Final = 1 << 20
"""Most bytes of ``drafter.json``."""


@dataclass(frozen=True)
class DraftTarget:
    """The model that a drafter was trained for.

    Attributes:
        name: as in the manifest of the package that it was trained with.
    """

    name: str
    source_sha256: str
    quantisation: Mapping[str, str]
    tokenizer_sha256: str
    hidden_size: int
    vocab_size: int
    num_layers: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return how a drafter names a package."""
        model = manifest.model
        return cls(
            name=model.name,
            source_sha256=manifest.source.sha256,
            quantisation=dict(manifest.quantisation),
            tokenizer_sha256=manifest.files[manifest.tokenizer.file].sha256,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
            num_layers=model.num_layers,
        )


@dataclass(frozen=True)
class DraftTensor:
    """A tensor of ``weights.bin``.

    Attributes:
        offset, length: its place in bytes.
        dtype: ``"uint8"``, ``"int32"`` or ``"float32"``, little-endian.
    """

    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class HeadInfo:
    """A recurrent head on the hidden state behind the last layer, or what the adapters of exits have in common.

    Attributes:
        formats: format of the tiles of ``fc``, ``gate_up`` and ``down``, and of ``head`` if it has rows of its own.
        vocabulary_size: tokens that it can guess, besides those of the prompt.
    """

    blocks: int
    intermediate_size: int
    epsilon: float
    formats: Mapping[str, str]
    vocabulary_size: int
    tensors: Mapping[str, DraftTensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingRecord:
    """How a drafter was trained."""

    tokens: int
    epochs: float
    steps: int
    seed: int
    recipe: str
    data: str
    hours: float


@dataclass(frozen=True)
class AcceptanceRecord:
    """How often guesses are right, measured on answers that were kept apart from training.

    Attributes:
        positions: share of first guesses that are right for the 1st, 2nd, ... token, given that those before were.
        top2, top4: share of first tokens that are among the first 2 and 4 guesses.
    """

    tokens: int
    positions: tuple[float, ...]
    top2: float
    top4: float


@dataclass(frozen=True)
class ExitRecord:
    """The adapter of an exit.

    Attributes:
        top1, top2, top4: share of tokens that are among its first 1, 2 and 4 guesses, as in ``AcceptanceRecord``.
    """

    layer: int
    top1: float
    top2: float
    top4: float


@dataclass(frozen=True)
class DrafterInfo:
    """Contents of ``drafter.json``.

    Attributes:
        head: sizes and tensors of the head, or of the adapters.
        acceptance: what it was measured to be worth; of adapters, the last one.
        license: licence identifier, or None.
        exits: of the kind ``"exit"``, its adapters by rising layer; none otherwise.
    """

    format_version: int
    producer: str
    name: str
    kind: str
    target: DraftTarget
    head: HeadInfo
    training: TrainingRecord
    acceptance: AcceptanceRecord
    license: str | None
    files: Mapping[str, FileInfo] = field(default_factory=dict)
    exits: tuple[ExitRecord, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The exits that it has adapters for."""
        return tuple(one.layer for one in self.exits)

    def to_bytes(self) -> bytes:
        """Return the canonical form: UTF-8 JSON, keys in field order, two spaces, final newline."""
        document: dict[str, Any] = {"format": FORMAT_NAME, **dataclasses.asdict(self)}
        if not self.exits:
            del document["exits"]  # readers that know heads alone refuse a field that is not theirs
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


@dataclass(frozen=True)
class TrainedDrafter:
    """An opened drafter.

    Attributes:
        id: SHA-256 of ``drafter.json``. As that lists the hash of every file, it identifies the whole content.
        vocabulary: ids of the tokens that it can guess, the most frequent first.
    """

    path: Path
    info: DrafterInfo
    id: str
    vocabulary: tuple[int, ...]

    @property
    def weights(self) -> Path:
        """The file that holds the tensors."""
        return self.path / WEIGHTS_FILE

    @property
    def weights_bytes(self) -> int:
        """Size of that file."""
        return self.info.files[WEIGHTS_FILE].size

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, the description included."""
        return sum(f.size for f in self.info.files.values()) + (self.path / DRAFTER_FILE).stat().st_size

    def verify(self) -> None:
        """Read every file and compare its hash."""
        verify_files(self.path, self.info.files, refusal(self.path))


def refusal(path: Path) -> Refusal:
    """Return what makes the errors of a drafter."""
    return lambda what, numbers: InvalidDrafter(f"{path}: {what}", numbers, "Train or fetch the drafter again.")
