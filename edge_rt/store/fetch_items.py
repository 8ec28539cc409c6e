"""Which files a fetch is made of, and where each of them can come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge_rt.errors import DownloadError, InputError, InvalidModelFile
from edge_rt.package.weights_info import KEEP
from edge_rt.store.hub_files import choose_files
from edge_rt.store.naming import HubReference
from edge_rt.store.recipes import FileSpec, HubSource, Recipe, Source
from edge_rt.store.sources_hub import HubOptions, list_cached, list_repository
from edge_rt.system.checkpoint_names import INDEX_FILE, WEIGHTS_SUFFIX, flat_name, part_names
from edge_rt.system.files import NOT_READ, storage_errors


@dataclass(frozen=True)
class Item:
    """One file and the sources that are tried for it, one after another."""

    spec: FileSpec
    sources: Sequence[Source]

    @property
    def is_weights(self) -> bool:
        """Whether it holds tensors of a checkpoint of transformers, which is judged by its other files first."""
        return self.spec.name.endswith(WEIGHTS_SUFFIX)


def total_bytes(items: Sequence[Item]) -> int:
    """Return the bytes of files whose size is known beforehand."""
    return sum(item.spec.size or 0 for item in items)


def least_package_bytes(items: Sequence[Item], *, weights: str | None, size: int) -> int:
    """Return the bytes that a package takes at least of files that will be fetched; what it takes is known then."""
    files = [item for item in items if item.is_weights or item.spec.name.lower().endswith(".gguf")]
    # Weights that keep their types keep their bytes, more or less; floats of 32 bits may become 4.
    keeps = weights == KEEP or (weights is None and not any(item.is_weights for item in files))
    return total_bytes(files) * 9 // 10 if keeps and not size else total_bytes(files) // 8


def is_kept(folder: Path, item: Item) -> bool:
    """Return whether an earlier fetch has left a file of the right size, whose hash can be compared."""
    path = folder / item.spec.name
    if item.spec.sha256 is None or path.is_symlink() or not path.is_file():
        return False
    with storage_errors(path, NOT_READ):
        return path.stat().st_size == item.spec.size


def has_kept(folder: Path, items: Sequence[Item]) -> bool:
    """Return whether an earlier fetch has left any of these files."""
    return any(is_kept(folder, item) for item in items)


def remove_others(folder: Path, names: Collection[str]) -> None:
    """Remove what an earlier fetch has left and this one does not need."""
    with storage_errors(folder):
        for path in folder.iterdir():
            if path.name not in names and not path.is_dir():
                path.unlink()


def recipe_items(recipe: Recipe) -> tuple[str | None, tuple[Item, ...]]:
    """Return the licence and the file of a recipe."""
    return recipe.license, (Item(recipe.file, recipe.sources),)


def hub_items(reference: HubReference, hub: HubOptions, *, offline: bool) -> tuple[str | None, tuple[Item, ...]]:
    """Return licence and files of a repository, weights of a checkpoint of transformers last."""
    if offline:
        if reference.file is None:
            return None, _cached_items(reference, hub)
        return None, tuple(_item(FileSpec(name), reference.repo, "main") for name in part_names(reference.file))
    listing = list_repository(reference.repo, hub)
    chosen = choose_files(listing, reference)
    return listing.license, tuple(_item(file, listing.repo, listing.revision) for file in chosen)


def _cached_items(reference: HubReference, hub: HubOptions) -> tuple[Item, ...]:
    """Return the files of a repository in the hub library's cache, which must be complete."""
    listing = list_cached(reference.repo, hub)
    if listing is None:
        raise DownloadError(
            f"{reference} is neither in the store nor in the hub library's cache.",
            "Offline mode is on.",
            "Turn offline mode off.",
        )
    try:
        chosen = choose_files(listing, reference)
    except InputError as error:
        raise DownloadError(
            f"The hub library's cache does not hold all of {reference}: {error.what}",
            error.numbers,
            "Turn offline mode off.",
        ) from error
    return tuple(_item(file, listing.repo, listing.revision) for file in chosen)


def _item(file: FileSpec, repo: str, revision: str) -> Item:
    # Folders of a repository are not kept: every file lies at the top of the store's folder.
    spec = replace(file, name=flat_name(file.name))
    return Item(spec, (HubSource(repo, revision, file.name),))


def needed_weights(folder: Path, weights: Sequence[Item], what: str) -> tuple[Item, ...]:
    """Judge a checkpoint by its other files, before its weights are fetched, and return those that its index names.

    Args:
        weights: files of tensors that were listed; if there are none, nothing is judged.
    """
    if not weights:
        return ()
    from edge_rt.export.opening import check_folder_config, check_operators
    from edge_rt.export.sources.safetensors_folder import read_index

    check_operators(check_folder_config(folder, what))
    if not (folder / INDEX_FILE).exists():
        return tuple(weights)
    named = set(read_index(folder / INDEX_FILE).values())
    if missing := sorted(named - {item.spec.name for item in weights}):
        raise InvalidModelFile(
            f"{what}: {INDEX_FILE} names files that are not there.",
            f"{len(missing)} of {len(named)} are missing, the first is {missing[0]:.80}.",
            "Wait until the repository is complete, or name another one.",
        )
    return tuple(item for item in weights if item.spec.name in named)
