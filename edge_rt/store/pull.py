"""Fetch and export in one step, so that a model is ready to be loaded."""

from __future__ import annotations

import functools
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.errors import ConfigError, EdgeRTError, ModelNotFound, VersionMismatch
from edge_rt.export.options import ExportOptions
from edge_rt.package.reader import stated_options
from edge_rt.package.weights_info import KEEP, require_known
from edge_rt.store.fetch import FetchedSource, fetch_source, find_target, local_source, read_local
from edge_rt.store.fetch_items import least_package_bytes
from edge_rt.store.layout import PULL_OPTIONS, Store
from edge_rt.store.made_from import recall, recorded_path, remember
from edge_rt.store.naming import HubReference, check_name, is_name, local_name
from edge_rt.store.recipes import Recipe
from edge_rt.store.resolve import FetchOptions, Resolved, resolve
from edge_rt.store.sources_local import local_path
from edge_rt.store.staging import discard, entry_lock
from edge_rt.system.byte_size import exact_size
from edge_rt.system.machine import return_free_memory
from edge_rt.system.progress import ProgressCallback, ProgressEvent, no_progress

if TYPE_CHECKING:
    from edge_rt.export import ExportReport
    from edge_rt.package.reader import Package

DEFAULT_ACTIVATIONS = "auto"
_log = logging.getLogger(__name__)


Exporter = Callable[[Path, Path, ExportOptions], Any]
"""Makes the package of a checkpoint in a folder and returns a report, as ``edge_rt.export.entry.export_with`` does."""


@dataclass(frozen=True)
class PullReport:
    """Result of a pull.

    Attributes:
        name: store name.
        package: folder of the package; None if only the source was requested.
        source: the source files; None if they did not have to be read or fetched.
        was_present: the package already existed.
        export: the exporter's report; None if nothing was exported.
        seconds: duration of the whole pull.
    """

    name: str
    package: Path | None
    source: FetchedSource | None
    was_present: bool
    export: ExportReport | None
    seconds: float


def export_with_edge_rt(source: Path, out: Path, options: ExportOptions) -> ExportReport:
    """Export with edge-rt's exporter, which is imported only here."""
    from edge_rt.export.entry import export_with

    return export_with(source, out, options)


def pull(
    ref: str | os.PathLike[str],
    *,
    store: Store,
    name: str | None = None,
    offline: bool = False,
    activations: str | None = None,
    weights: str | None = None,
    size: int = 0,
    kv: str | None = None,
    accept_loss: bool = False,
    force: bool = False,
    keep_source: bool = True,
    export: bool = True,
    progress: ProgressCallback = no_progress,
    exporter: Exporter = export_with_edge_rt,
    options: FetchOptions | None = None,
) -> PullReport:
    """Fetch a model and export it into ``packages/NAME``; steps whose result already exists are skipped.

    Args:
        ref: recipe name, ``org/name``, ``org/name:file.gguf``, a local GGUF file (or a folder with just one), or a
            folder with ``config.json`` and safetensors.
        name: store name; None for the one that follows from ``ref``.
        activations: activation type of the export; None for the recipe's, or ``auto``.
        weights: types of the matrices, as in ``edge_rt.export.export_model``; a package with others is exported again.
            None: those of the package if there is one, else the exporter's default.
        size: bytes that ``weights.bin`` may have, instead of ``weights``; a package of another size is exported again.
            0: that of the package if there is one, else no limit.
        kv: format of the cache that the package is loaded with by default; None: that of the package if there is one,
            else what the exporter measures.
        accept_loss: export even if quantising changes the model's predictions more than is allowed.
        force: fetch and export again, and replace another model of that name.
        progress: receives the stages of fetching, then those of the export.
        options: servers, recipes and programs to use instead of the real ones.

    Raises:
        ConfigError: malformed reference or name; the name belongs to another model, or to one with other activations
            or another cache;
            ``weights`` are unknown, or given beside ``size``.
        InputError: the model does not exist or cannot be exported.
    """
    started = time.monotonic()
    require_known(weights, size)
    wanted = ExportOptions(
        activations=activations, weights=weights, size=size, kv=kv, accept_loss=accept_loss, progress=progress
    )
    options = FetchOptions() if options is None else options
    try:
        target, default = find_target(_source_of(ref, store), store, options)
    except ModelNotFound:
        package = None if force else _package_without_source(ref, store)
        if package is None or not _has_weights(package, wanted):
            raise
        return PullReport(os.fspath(ref), package.path, None, True, None, time.monotonic() - started)
    checkpoint = read_local(target, store, progress) if isinstance(target, Path) else None
    local = None if checkpoint is None else local_source(checkpoint, None)
    default = default if local is None else local.name
    name = check_name(default if name is None else name)
    if stated := {} if force or not export else _options_of_older(name, store):
        activations = activations or stated.get("activations")
        wanted = replace(wanted, activations=activations, kv=kv or stated.get("kv-type"))
        if weights is None and not size:
            # What was accepted then is no news.
            weights, size = stated.get("weights"), stated.get("size", 0)
            wanted = replace(wanted, weights=weights, size=size, accept_loss=True)
    request = _Request(target, local, default, name, store, wanted, exporter)

    def present(found: Package) -> PullReport:
        if checkpoint is not None:
            remember(store.made_from, name, checkpoint)
        if not _has_weights(found, wanted):
            request.tell(f"nothing to change: with --weights {weights} every matrix of {name!r} keeps its type")
        return PullReport(name, found.path, None, True, None, time.monotonic() - started)

    if not force and export:
        # Packages are absent or complete: one that is there needs no lock, and no store that can be written.
        found = replace(request, options=replace(wanted, progress=no_progress)).find_package()
        if found is not None:
            return present(found)
    with request.locked():
        found = None if force or not export else request.find_package()
        if found is not None:
            return present(found)
        source = local or fetch_source(
            ref,
            store=store,
            name=name,
            offline=offline,
            force=force,
            verify=export,
            progress=progress,
            options=options,
            package_bytes=functools.partial(least_package_bytes, weights=weights, size=size) if export else None,
        )
        package_path, report = None, None
        if export:
            package_path, report = request.export(source)
            # What the export leaves free would count as memory of this process in the plan of a load.
            gc.collect()
            return_free_memory()
            if checkpoint is not None:
                remember(store.made_from, name, checkpoint)
            if not keep_source and local is None:
                discard(store.source_path(name))
    return PullReport(name, package_path, source, False, report, time.monotonic() - started)


def _source_of(ref: str | os.PathLike[str], store: Store) -> str | os.PathLike[str]:
    """Return the path of the checkpoint that a name's package was made of, if it is known and unchanged."""
    name = os.fspath(ref)
    if isinstance(ref, str) and is_name(name) and store.has_package(name):
        return recorded_path(store.made_from, name) or ref
    return ref


def _options_of_older(name: str, store: Store) -> dict[str, Any]:
    """Return the options that a package of another version was exported with; none of anything else."""
    path = store.package_path(name)
    try:
        if path.exists():
            store.read_package(path)
    except VersionMismatch:
        stated = stated_options(path)
        if stated.keys() - PULL_OPTIONS:
            raise
        return stated
    except EdgeRTError:
        pass  # it is made anew, and what is wrong is told then
    return {}


def _package_without_source(ref: str | os.PathLike[str], store: Store) -> Package | None:
    """Return a package without a recipe whose source files are gone, such as one made from a local file."""
    name = os.fspath(ref)
    try:
        return store.read_package(store.package_path(name)) if is_name(name) and store.has_package(name) else None
    except VersionMismatch:
        return None


def _choice_of(package: Package) -> str:
    """Return the types of a package's weights as the option ``weights`` names them."""
    return KEEP if package.manifest.weights is None else package.manifest.weights.choice


def _named_choice(weights: str | None, size: int) -> str:
    """Return the options as a user would write them."""
    return f"--size {exact_size(size)}" if size else f"--weights {weights}"


def _has_weights(package: Package, options: ExportOptions) -> bool:
    """Return whether a package is what an export with these options makes; without any, every package is."""
    if options.size_bytes:
        return package.manifest.weights is not None and package.manifest.weights.size == options.size_bytes
    return options.weights in (None, _choice_of(package))


@dataclass(frozen=True)
class _Request:
    """The arguments of one pull; ``default`` is the name that follows from the reference."""

    target: Recipe | HubReference | Path
    local: FetchedSource | None
    default: str
    name: str
    store: Store
    options: ExportOptions
    exporter: Exporter

    @contextmanager
    def locked(self) -> Iterator[None]:
        message = f"another process is working on {self.name!r}: waiting for it"
        self.store.prepare()
        with entry_lock(self.store.lock_path(self.name, role="package"), on_wait=lambda: self.tell(message)):
            yield

    def tell(self, message: str) -> None:
        """Report a sentence about the package."""
        self.options.progress(ProgressEvent("package", 1, 1, message=message))

    def find_package(self) -> Package | None:
        """Return the package if it exists and is right; None if it must be made."""
        path = self.store.package_path(self.name)
        if not path.exists():
            return None
        try:
            package = self.store.read_package(path)
        except VersionMismatch:
            self.tell(f"{self.name!r} was made by another version of edge-rt, and is made again, once")
            return None
        except EdgeRTError as error:
            self.tell(f"the package {self.name!r} is not usable, exporting it again: {error}")
            return None
        if not self._is_same_source(package):
            if self.name != self.default:
                raise self._taken(f"It was made from {package.manifest.source.name}.")
            self.tell(f"{self.name!r} has a newer source, exporting again")
            return None
        activations = self.options.activations
        if activations not in (None, package.manifest.activations_choice):
            raise self._taken(f"It has activations {package.manifest.activations_choice!r}, not {activations!r}.")
        first = package.manifest.kv_formats[0]
        if self.options.kv not in (None, first):
            raise self._taken(f"Its KV cache is {first!r} by default, not {self.options.kv!r}.")
        if not _has_weights(package, self.options) and not self.changes_nothing(package):
            info = package.manifest.weights
            found = _named_choice(_choice_of(package), 0 if info is None else info.size)
            wanted = _named_choice(self.options.weights, self.options.size_bytes)
            self.tell(f"{self.name!r} was exported with {found}, exporting again with {wanted}")
            return None
        return package

    def changes_nothing(self, package: Package) -> bool:
        """Return whether an export with these weights gives the same types again, as of a file that is quantised."""
        path = self.store.fetched_path(self.name) if self.local is None else self.local.path
        weights = self.options.weights
        if path is None or self.options.size_bytes or weights is None:
            return False
        from edge_rt.export.opening import has_same_types

        try:
            return has_same_types(path, _choice_of(package), weights, package.manifest.op_profile)
        except EdgeRTError:
            return False  # the export says what is wrong

    def _taken(self, numbers: str) -> ConfigError:
        return ConfigError(
            f"{self.name!r} in the store is another package.",
            numbers,
            "Choose another name with --name, or replace it with --force.",
        )

    def _is_same_source(self, package: Package) -> bool:
        found = package.manifest.source.sha256
        if isinstance(self.target, Recipe):
            return found == self.target.file.sha256
        if self.local is not None:
            return found == self.local.sha256
        try:
            record = self.store.find_record(self.name)
        except EdgeRTError:
            record = None
        if record is not None:
            return record.origin == f"hub {self.target}" and record.sha256 == found
        # Without a record only the default name shows where it came from; a name that the user chose does not.
        return self.name == self.default

    def export(self, source: FetchedSource) -> tuple[Path, Any]:
        """Make the package and return its folder with the exporter's report."""
        out = self.store.package_path(self.name)
        out_exists = out.exists()
        if out_exists and not (out / "manifest.json").is_file():
            discard(out)  # the exporter refuses to replace a folder that is not a package
        recipe = self.target if isinstance(self.target, Recipe) else None
        options = replace(
            self.options,
            activations=self.options.activations or (recipe.activations if recipe else DEFAULT_ACTIVATIONS),
            sampling=recipe.sampling if recipe else None,
            force=out_exists,
        )
        report = self.exporter(source.path, out, options)
        return out, report


def find_made(resolved: Resolved, store: Store) -> Package | None:
    """Return the package that was made of a local checkpoint, if no file of that has changed; it is not read.

    Returns:
        The package, or None if there is none or the checkpoint must be hashed to know.
    """
    if not resolved.is_checkpoint or resolved.in_store or resolved.path is None:
        return None
    known = recall(store.made_from, local_path(resolved.path))
    if known is None:
        return None
    path = store.package_path(local_name(known.name, known.sha256))
    try:
        package = store.read_package(path) if path.exists() else None
    except EdgeRTError:
        return None  # it is made again, and what is wrong is told then
    return package if package is not None and package.manifest.source.sha256 == known.sha256 else None


def ensure_package(
    ref: str | os.PathLike[str],
    *,
    store: Store,
    offline: bool = False,
    progress: ProgressCallback = no_progress,
    exporter: Exporter = export_with_edge_rt,
    options: FetchOptions | None = None,
) -> Path:
    """Return the folder of a package for a model argument; fetch and export it first if needed.

    A local checkpoint is exported into the store once, under its own name and the start of its hash. Later calls find
    it there without reading it, as long as none of its files changes.

    Args:
        ref: path of a package, GGUF file or folder with safetensors, store name, recipe name, or hub reference.
    """
    resolved = resolve(ref, store, options=options)
    if resolved.kind == "package":
        assert resolved.path is not None
        try:
            return store.read_package(resolved.path).path
        except VersionMismatch:
            if not resolved.can_be_made_again(store, None if options is None else options.recipes):
                raise
        _log.warning("%s was made by another version of edge-rt, and is made again, once", resolved.name)
        ref = resolved.name
    made = find_made(resolved, store)
    if made is not None:
        return made.path
    report = pull(ref, store=store, offline=offline, progress=progress, exporter=exporter, options=options)
    assert report.package is not None
    return report.package
