"""What a folder that is not a package holds: a GGUF file, a checkpoint of transformers, or nothing of use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from edge_rt.byte_size import counted
from edge_rt.errors import InputError, InvalidPackage, ModelNotFound, UnsupportedModel
from edge_rt.package.drafter import DRAFTER_FILE
from edge_rt.store.files import storage_errors
from edge_rt.store.hub_files import CONVERT, is_pickle
from edge_rt.system.checkpoint_names import ADAPTER_CONFIG_FILE, ADAPTER_FILE, CONFIG_FILE, WEIGHTS_SUFFIX, part_names

MAX_LISTED = 10_000
MAX_NAMED = 10


def find_checkpoint(folder: Path) -> Path:
    """Return the only GGUF file of a folder, a part of the only split one, or the folder itself if it is a checkpoint.

    Raises:
        InvalidPackage: several GGUF files, or nothing that edge-rt knows.
        UnsupportedModel: weights that edge-rt does not read.
        ModelNotFound: a checkpoint without weights or without its configuration.
        StorageError: the folder cannot be read.
    """
    with storage_errors(folder):
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
    """Return whether a folder holds a checkpoint of transformers with safetensors.

    Raises:
        StorageError: the folder cannot be read.
    """
    with storage_errors(folder):
        weights = (path for path in folder.glob(f"*{WEIGHTS_SUFFIX}") if path.name != ADAPTER_FILE)
        return (folder / CONFIG_FILE).is_file() and next(weights, None) is not None


def _wrong_folder(path: Path, names: Sequence[str]) -> InputError:
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
