"""The catalogue: small open models by the names that people know, as data, and what was fetched of them first.

``models/catalogue.toml`` has a table for each. A hub repository may change a file under its name. So the first fetch of
a model keeps the hashes of its files in the store, under ``first-fetches/``, and later ones compare them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import DownloadError, InputError, InvalidModelFile
from edge_rt.store.hub_files import file_type_of
from edge_rt.store.naming import HubReference, is_name
from edge_rt.store.recipes import MAX_RECIPE_BYTES, ObjectReader, recipe_folder
from edge_rt.system.checkpoint_names import is_repository, part_names
from edge_rt.system.files import write_atomically
from edge_rt.system.json_files import read_object

CATALOGUE_FILE: Final = "catalogue.toml"
FIRST_FETCHES: Final = "first-fetches"
_MAX_RECORD_BYTES: Final = 1 << 20
_MB: Final = 10**6
_PAGE: Final = re.compile(r"https://[a-z0-9.-]+/\S+")
_VERSION: Final = 1


@dataclass(frozen=True)
class CatalogueModel:
    """A model that is known by name.

    Attributes:
        file: path of its GGUF file in the repository ``repo``.
        weights: the file's type, as llama.cpp names mixtures: ``Q4_K_M``.
        size_bytes: of the file, to about a percent.
        license: identifier on the model's page.
        page: where its authors publish it.
        good_at: a few words.
        listed: when the file was seen in a public listing.
        config: numbers of the model's ``config.json``.
    """

    name: str
    title: str
    repo: str
    file: str
    weights: str
    size_bytes: int
    license: str
    page: str
    good_at: str
    listed: date
    config: Mapping[str, Any]

    @property
    def reference(self) -> HubReference:
        """What is fetched."""
        return HubReference(self.repo, self.file)

    @property
    def context_length(self) -> int:
        """Tokens of context that the model was made for."""
        return int(self.config["max_position_embeddings"])


Catalogue = Mapping[str, CatalogueModel]


@cache
def load_catalogue() -> Catalogue:
    """Read the catalogue that comes with edge-rt: name -> model, in the order of the file."""
    return read_catalogue(recipe_folder() / CATALOGUE_FILE)


def read_catalogue(file: Traversable) -> Catalogue:
    """Read and check a catalogue; unknown keys are errors, as in recipes."""
    import tomllib  # not for commands that take a path or a name of the store

    with file.open("rb") as stream:
        raw = stream.read(MAX_RECIPE_BYTES)
    try:
        tables = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file.name} is not valid TOML.", f"{error}.", "Install edge-rt again.") from error
    return {name: _model(name, ObjectReader(f"{file.name}: {name}", table)) for name, table in tables.items()}


def _model(name: str, reader: ObjectReader) -> CatalogueModel:
    file = reader.take("file", str, lambda text: text.lower().endswith(".gguf") and part_names(text) == (text,))
    weights = reader.take("weights", str, len) if "weights" in reader.left else file_type_of(file)
    if not is_name(name) or weights is None:
        reader.fail("has no valid name, or its file no type", f"The name is {name!r:.60}, the file {file!r:.80}.")
    config = reader.take("config", dict, lambda config: {"model_type", "max_position_embeddings"} <= config.keys())
    found = CatalogueModel(
        name=name,
        title=reader.take("title", str, len),
        repo=reader.take("repo", str, is_repository),
        file=file,
        weights=weights,
        size_bytes=reader.take("size_mb", int, lambda size: size > 0) * _MB,
        license=reader.take("license", str, len),
        page=reader.take("page", str, _PAGE.fullmatch),
        good_at=reader.take("good_at", str, len),
        listed=reader.take("listed", date),
        # TOML has no null.
        config={key: None if value == "null" else value for key, value in config.items()},
    )
    reader.finish()
    return found


def usual_name(text: str) -> str:
    """Return a name as the catalogue writes it: ``Qwen3:0.6B`` is ``qwen3-0.6b``."""
    return text.lower().replace(":", "-")


def model_of(reference: object, catalogue: Catalogue) -> CatalogueModel | None:
    """Return the model whose file a reference names; None for other files."""
    return next((model for model in catalogue.values() if model.reference == reference), None)


@dataclass(frozen=True)
class FirstFetch:
    """What a model's files were when they were fetched first.

    Attributes:
        day: as ``2026-11-26``.
        hashes: file -> sha256.
    """

    day: str
    hashes: Mapping[str, str]


def first_fetch_path(root: Path, model: CatalogueModel) -> Path:
    """Return where the hashes of a model are kept below a store's root."""
    return root / FIRST_FETCHES / f"{model.name}.json"


def read_first_fetch(root: Path, model: CatalogueModel) -> FirstFetch | None:
    """Return what is known of a model's first fetch into this store; None: it was never fetched from that file."""
    path = first_fetch_path(root, model)
    if not path.exists():
        return None

    def refuse(reason: str) -> InvalidModelFile:
        return InvalidModelFile(f"{path} is damaged.", reason, "Remove it, if you trust what the repository holds now.")

    document = read_object(path, _MAX_RECORD_BYTES, refuse)
    day, hashes = document.get("day"), document.get("hashes")
    if not isinstance(day, str) or not isinstance(hashes, dict) or document.get("version") != _VERSION:
        raise refuse("It does not hold a day and hashes.")
    # Of another file, of an older catalogue, nothing is compared.
    return FirstFetch(day, hashes) if document.get("origin") == str(model.reference) else None


def compare_first_fetch(root: Path, model: CatalogueModel, hashes: Mapping[str, str | None]) -> None:
    """Refuse files that are not those of the first fetch; a hash that is not known yet is not compared."""
    first = read_first_fetch(root, model)
    for name, known in {} if first is None else first.hashes.items():
        now = hashes.get(name)
        if first is not None and now is not None and now != known:
            raise DownloadError(
                f"{model.repo} holds another {name} than when {model.name!r} was fetched first.",
                f"Its sha256 is {now[:16]}..., on {first.day} it was {known[:16]}...",
                f"If the repository is right, remove {first_fetch_path(root, model)} and pull again.",
            )


def keep_first_fetch(root: Path, model: CatalogueModel, hashes: Sequence[tuple[str, str]]) -> None:
    """Keep the hashes of a model's files, unless they are kept already."""
    if read_first_fetch(root, model) is not None:
        return
    day = datetime.now(UTC).date().isoformat()
    document = {"version": _VERSION, "origin": str(model.reference), "day": day, "hashes": dict(hashes)}
    write_atomically(first_fetch_path(root, model), [json.dumps(document, indent=2).encode() + b"\n"], parents=True)
