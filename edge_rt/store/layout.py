"""The store: one folder with exported packages and the files they were made from.

::

    packages/NAME/       an exported package
    sources/NAME/        the fetched files, and source.json
    sources/.part-NAME/  complete files of a fetch that did not end
    made-from/NAME.json  the local checkpoint that NAME was made of
    first-fetches/       hashes of the catalogue's models, as they were fetched first
    locks/NAME.ROLE      held while NAME is fetched, exported or removed, and only then there
"""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_rt.errors import EdgeRTError, InvalidModelFile, ModelNotFound, VersionMismatch
from edge_rt.store.config import Config, store_root
from edge_rt.store.naming import check_name, is_name, parse_hub_reference
from edge_rt.system.files import NOT_READ, storage_errors, tree_bytes

if TYPE_CHECKING:
    from edge_rt.package.reader import Package
    from edge_rt.store.recipes import Recipe
    from edge_rt.store.records import SourceRecord


_PARTIAL: Final = ".part-"
PULL_OPTIONS: Final = {"weights", "size", "activations", "kv-type"}
"""Options of an export that a pull has, too."""


@dataclass(frozen=True)
class StoreEntry:
    """One name in a store.

    Attributes:
        name: store name.
        path: folder of the package; None if there are only source files.
        size_bytes: bytes of the package; 0 without one.
        source_bytes: bytes of the kept source files, those of a fetch that did not end included; 0 without any.
        architecture: architecture family, such as ``llama``.
        quantisation: format per tensor class.
        activations: activation type of the package.
        op_profile: op profile of the package.
        license: SPDX identifier, if known.
        origin: the recipe or hub reference that the source was fetched from, if the source is kept.
        problem: why the entry cannot be used; None if nothing is wrong with it.
    """

    name: str
    path: Path | None
    size_bytes: int
    source_bytes: int
    architecture: str | None = None
    quantisation: dict[str, str] | None = None
    activations: str | None = None
    op_profile: str | None = None
    license: str | None = None
    origin: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class RemovedReport:
    """How much a removal freed.

    Attributes:
        name: store name.
        bytes: bytes of package and sources together.
    """

    name: str
    bytes: int


def read_package(path: Path) -> Package:
    """Open a package. A separate function, so that a ``Store`` can be given another one."""
    from edge_rt.package.reader import open_package

    return open_package(path)


def suggest(name: str, names: Iterable[str], others: Collection[str] = ()) -> str:
    """Return a sentence that lists the existing names, similar ones first; of the others only those."""
    known = sorted(set(names))
    close = difflib.get_close_matches(name.lower(), [*known, *others], n=3, cutoff=0.5)
    if close:
        meant = f"Did you mean {' or '.join(repr(match) for match in close)}?"
        return f"{meant} Known names: {', '.join(known)}." if known else meant
    if not known and others:
        return "No name is like it."
    return f"Known names: {', '.join(known) or 'none'}."


@dataclass(frozen=True)
class Store:
    """A store on disk; its folders are created when something is first written.

    Attributes:
        read_package: opens a package, and raises an `EdgeRTError` for a damaged one.
    """

    root: Path
    read_package: Callable[[Path], Package] = read_package

    @property
    def packages(self) -> Path:
        """Folder of the exported packages."""
        return self.root / "packages"

    @property
    def sources(self) -> Path:
        """Folder of the fetched files."""
        return self.root / "sources"

    @property
    def made_from(self) -> Path:
        """Folder of the records of local checkpoints."""
        return self.root / "made-from"

    def package_path(self, name: str) -> Path:
        """Return where the package of that name is or would be."""
        return self.packages / check_name(name)

    def source_path(self, name: str) -> Path:
        """Return the folder where the source files of that name are or would be."""
        return self.sources / check_name(name)

    def partial_path(self, name: str) -> Path:
        """Return the folder where a fetch that does not end leaves its complete files."""
        return self.sources / f"{_PARTIAL}{check_name(name)}"

    def lock_path(self, name: str, *, role: str) -> Path:
        """Return the path of the lock file for an entry's ``package`` or ``source``."""
        return self.root / "locks" / f"{check_name(name)}.{role}"

    def prepare(self) -> None:
        """Create the folders, and delete temporary folders of processes that have ended."""
        from edge_rt.store.staging import reclaim

        for folder in (self.packages, self.sources):
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            reclaim(folder)

    def has_package(self, name: str) -> bool:
        """Return whether there is a package of that name, intact or not."""
        return is_name(name) and (self.packages / name).exists()

    def find_record(self, name: str) -> SourceRecord | None:
        """Return what is known about the source files of that name, or None if there are none."""
        from edge_rt.store.records import read_record

        folder = self.source_path(name)
        return read_record(folder) if folder.exists() else None

    def fetched_path(self, name: str) -> Path | None:
        """Return the GGUF file or folder stored under a name, if it is usable; `pull` repairs one that is not."""
        if not is_name(name):
            return None
        try:
            record = self.find_record(name)
        except InvalidModelFile:
            return None
        return None if record is None else record.model_path(self.source_path(name))

    def can_make_again(self, name: str, recipes: Mapping[str, Recipe] | None = None) -> bool:
        """Return whether `pull` can make a package of another version again, by its name.

        That is if it was exported with options that a pull has, and there is a recipe, or its source is still here.

        Args:
            recipes: models known by name; None for those that come with edge-rt.
        """
        from edge_rt.package.reader import stated_options
        from edge_rt.store.catalogue import load_catalogue
        from edge_rt.store.made_from import recorded_path
        from edge_rt.store.recipes import load_recipes

        if stated_options(self.package_path(name)).keys() - PULL_OPTIONS:
            return False
        return (
            name in (load_recipes() if recipes is None else recipes)
            or name in load_catalogue()
            or self.fetched_path(name) is not None
            or recorded_path(self.made_from, name) is not None
        )

    def names(self) -> builtins.list[str]:
        """Return the names of all entries in alphabetical order."""
        found: set[str] = set()
        for folder in (self.packages, self.sources):
            with storage_errors(folder, NOT_READ):
                if folder.is_dir():
                    found.update(path.name.removeprefix(_PARTIAL) for path in folder.iterdir())
        return sorted(name for name in found if is_name(name))

    def remove(self, name: str) -> RemovedReport:
        """Delete a package and its source files; each is removed atomically."""
        from edge_rt.store.made_from import forget
        from edge_rt.store.staging import discard, entry_lock

        reference = parse_hub_reference(name)
        name = check_name(name) if reference is None else reference.store_name
        if name not in self.names():
            raise ModelNotFound(f"The store has no model {name!r}.", suggest(name, self.names()), "See 'edge-rt list'.")
        with ExitStack() as stack:
            for role in ("package", "source"):
                stack.enter_context(entry_lock(self.lock_path(name, role=role), on_wait=None))
            paths = (self.package_path(name), self.source_path(name), self.partial_path(name))
            freed = sum(discard(path) for path in paths)
            forget(self.made_from, name)
        self.prepare()
        return RemovedReport(name, freed)

    def list(self) -> builtins.list[StoreEntry]:
        """Return all entries in alphabetical order; damaged ones carry a `problem`."""
        return [self._entry(name) for name in self.names()]

    def _entry(self, name: str) -> StoreEntry:
        package, record = None, None
        problems = []
        path, source, partial = self.package_path(name), self.source_path(name), self.partial_path(name)
        try:
            package = self.read_package(path) if path.exists() or path.is_symlink() else None
        except VersionMismatch as error:
            again = "another version of edge-rt made it; it is made again when it is loaded"
            problems.append(f"package: {again if self.can_make_again(name) else error}")
        except (EdgeRTError, OSError) as error:
            problems.append(f"package: {error}")
        try:
            record = self.find_record(name)
        except (EdgeRTError, OSError) as error:
            problems.append(f"source: {error}")
        if partial.exists():
            problems.append("source: its fetch did not end; pull it again to continue, or remove it")
        manifest = None if package is None else package.manifest
        return StoreEntry(
            name=name,
            path=path if path.exists() else None,
            size_bytes=tree_bytes(path) if package is None else package.size_bytes,
            source_bytes=tree_bytes(source) + tree_bytes(partial),
            architecture=None if manifest is None else manifest.model.family,
            quantisation=None if manifest is None else dict(manifest.quantisation),
            activations=None if manifest is None else manifest.activations_choice,
            op_profile=None if manifest is None else manifest.op_profile,
            license=(record.license if record else None) or (manifest.license if manifest else None),
            origin=None if record is None else record.origin,
            problem="; ".join(problems) or None,
        )


def open_store(root: str | Path | None = None, *, config: Config | None = None) -> Store:
    """Return the store named by a flag, else by the configuration file, else the user's default store."""
    return Store(store_root(root, config=config))
