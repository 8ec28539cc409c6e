"""Which files of a hub repository are fetched: GGUF or safetensors weights and the files they need, never pickles.

GGUF comes first, then safetensors with the files of transformers. If there are several GGUF files, the format that
comes first in `PREFERRED_FORMATS` is chosen. 4-bit formats come first, because decoding reads every weight once per
token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from edge_rt.errors import ModelNotFound, UnsupportedModel
from edge_rt.store.naming import HubReference, is_safe_path, type_name
from edge_rt.store.recipes import FileSpec
from edge_rt.system.byte_size import counted
from edge_rt.system.checkpoint_names import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    CARD_FILE,
    CONFIG_FILE,
    INDEX_FILE,
    MODULES_FILE,
    POOLING_FILE,
    PROMPTS_FILE,
    SINGLE_FILE,
    TOKENIZER_FILE,
    TOOL_TEMPLATE_FILE,
    WEIGHTS_SUFFIX,
    parse_split_name,
    part_names,
)

PREFERRED_FORMATS = (
    *("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL"),
    *("Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
    *("BF16", "F16", "F32"),
)
TEXT_PATTERNS = (
    INDEX_FILE,
    "tokenizer*.json",
    "special_tokens_map.json",
    CONFIG_FILE,
    "generation_config.json",
    "chat_template*.json",
    "chat_template*.jinja",
    TOOL_TEMPLATE_FILE,
    MODULES_FILE,
    PROMPTS_FILE,
    POOLING_FILE,
    "LICENSE*",
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    CARD_FILE,
)
"""Files of a checkpoint of transformers that are fetched beside its weights."""
MAX_TEXT_BYTES = 128 << 20
MAX_LICENCE_BYTES = 1 << 20
CONVERT = (
    "Convert it in an environment with PyTorch (model.save_pretrained(folder, safe_serialization=True)) "
    "or to GGUF with llama.cpp's converter."
)

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_CODE = (*_PICKLES, ".py", ".so", ".dll")
_FORMAT = re.compile(r"(?:^|[._-])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32|FP16|FP32))$", re.IGNORECASE)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True)
class HubListing:
    """The files of a repository.

    Attributes:
        license: SPDX identifier from the model card, if it has one.
        files: all files; size and sha256 where the hub knows them.
    """

    repo: str
    revision: str
    license: str | None
    files: tuple[FileSpec, ...]


def is_pickle(name: str) -> bool:
    """Return whether a file of that name is a pickle, which runs code when it is loaded."""
    return name.lower().endswith(_PICKLES)


def file_type_of(name: str) -> str | None:
    """Return the weight format at the end of a GGUF file's name, such as ``Q4_0``; None if there is none."""
    match = _FORMAT.search(PurePosixPath(name).stem)
    return None if match is None else type_name(match[1])


def choose_files(listing: HubListing, reference: HubReference) -> tuple[FileSpec, ...]:
    """Choose what to fetch: one GGUF file, all its parts if it is split, with the licence; or a checkpoint's files.

    Returns:
        The files; GGUF files come first, safetensors last.
    """
    # File names are untrusted: paths that could leave the folder, and files that run code when loaded, are ignored.
    files = [file for file in listing.files if is_safe_path(file.name) and not file.name.lower().endswith(_CODE)]
    ggufs = [file for file in files if file.name.lower().endswith(".gguf")]
    models = [file for file in ggufs if _is_model(file.name)]
    licences = tuple(file for file in files if _is_licence(file))
    if reference.file is not None:
        return (*_named(ggufs, reference.file, listing.repo), *licences)
    if reference.weights is not None:
        return (*_of_type(models, reference.weights, listing.repo), *licences)
    if models:
        return (*_preferred(models, listing.repo), *licences)
    top = {file.name: file for file in files if "/" not in file.name or file.name == POOLING_FILE}
    if any(name.endswith(WEIGHTS_SUFFIX) for name in top):
        return _checkpoint(top, listing.repo)
    if any(is_pickle(file.name) for file in listing.files):
        raise UnsupportedModel(
            f"{listing.repo} holds its weights only as pickles.",
            "A pickle runs code when it is loaded; edge-rt reads GGUF and safetensors.",
            CONVERT,
        )
    raise UnsupportedModel(
        f"{listing.repo} holds no weights that edge-rt reads.",
        f"{counted(len(listing.files), 'file')}, none of them GGUF or safetensors.",
        "Name another repository.",
    )


def _checkpoint(files: Mapping[str, FileSpec], repo: str) -> tuple[FileSpec, ...]:
    """Return the files of a checkpoint of transformers, weights last."""
    if ADAPTER_CONFIG_FILE in files and all(name == ADAPTER_FILE for name in files if name.endswith(WEIGHTS_SUFFIX)):
        raise UnsupportedModel(
            f"{repo} is an adapter, not a model.",
            f"It holds {ADAPTER_CONFIG_FILE}, and no weights but those of the adapter.",
            f"Fetch it (hf download {repo} --local-dir DIR) and export it with its model: "
            "edge-rt export -m BASE --adapter DIR --out PACKAGE",
        )
    for name in (CONFIG_FILE, TOKENIZER_FILE):
        if name not in files:
            raise UnsupportedModel(
                f"{repo} has safetensors, but no {name}.",
                f"An export needs {CONFIG_FILE} and {TOKENIZER_FILE} beside the weights.",
                "Name a repository of the whole model, in safetensors or GGUF.",
            )
    texts = [
        file
        for name, file in files.items()
        if any(fnmatchcase(name, pattern) for pattern in TEXT_PATTERNS) and (file.size or 0) <= MAX_TEXT_BYTES
    ]
    return (*texts, *(files[name] for name in _weights(files, repo)))


def _weights(files: Mapping[str, FileSpec], repo: str) -> list[str]:
    """Return the files of tensors: those that an index may name, ``model.safetensors``, or the only one."""
    found = sorted(name for name in files if name.endswith(WEIGHTS_SUFFIX) and name != ADAPTER_FILE)
    if INDEX_FILE not in files:
        if SINGLE_FILE in files:
            return [SINGLE_FILE]
        if len(found) == 1:
            return found
        raise UnsupportedModel(
            f"{repo} has several safetensors files without {INDEX_FILE}.",
            f"They are {', '.join(found[:20])}.",
            "Name another repository of the model.",
        )
    shards = [match for name in found if (match := _SHARD.fullmatch(name))]
    for shard in shards:
        count = int(shard["count"])
        of_model = {
            int(one["number"]) for one in shards if (one["stem"], one["count"]) == (shard["stem"], shard["count"])
        }
        if missing := count - len(of_model & set(range(1, count + 1))):
            raise ModelNotFound(
                f"{repo} lacks parts of its weights.",
                f"{missing} of the {count} files like {shard[0]} are missing.",
                "Wait until the repository is complete, or name another one.",
            )
    return [shard[0] for shard in shards] or found


def _is_licence(file: FileSpec) -> bool:
    return file.name.startswith("LICENSE") and "/" not in file.name and (file.size or 0) <= MAX_LICENCE_BYTES


def _named(ggufs: Sequence[FileSpec], name: str, repo: str) -> tuple[FileSpec, ...]:
    if any(file.name == name for file in ggufs):
        return _all_parts(ggufs, name, repo)
    raise ModelNotFound(f"{repo} has no file {name!r}.", f"Its GGUF files: {_names(ggufs)}.", "Name one of them.")


def gguf_models(listing: HubListing) -> list[tuple[str, str | None, int | None]]:
    """Return the GGUF models of a repository: the first file, its type, and the bytes of all its parts, if known."""
    sizes = {file.name: file.size for file in listing.files if is_safe_path(file.name) and _is_model(file.name)}
    found = []
    for parts in dict.fromkeys(part_names(name) for name in sizes):
        known = [size for part in parts if (size := sizes.get(part)) is not None]
        found.append((parts[0], _format_of(parts), sum(known) if len(known) == len(parts) else None))
    return found


def _is_model(name: str) -> bool:
    """Return whether a file is a GGUF model; "mmproj" files are image encoders that accompany one."""
    return name.lower().endswith(".gguf") and not PurePosixPath(name).name.lower().startswith("mmproj")


def _of_type(models: Sequence[FileSpec], weights: str, repo: str) -> tuple[FileSpec, ...]:
    found = [parts for parts in dict.fromkeys(part_names(file.name) for file in models) if _format_of(parts) == weights]
    if not found:
        raise ModelNotFound(f"{repo} has no GGUF file of type {weights}.", f"It has {_names(models)}.", "Name another.")
    if len(found) > 1:
        names = ", ".join(parts[0] for parts in found[:20])
        raise ModelNotFound(
            f"{repo} has several GGUF files of type {weights}.", f"They are {names}.", f"Name one: {repo}:FILE.gguf."
        )
    return _all_parts(models, found[0][0], repo)


def _preferred(ggufs: Sequence[FileSpec], repo: str) -> tuple[FileSpec, ...]:
    models = list(dict.fromkeys(part_names(file.name) for file in ggufs))
    formats = [_format_of(parts) for parts in models]
    for wanted in PREFERRED_FORMATS:
        matches = [parts for parts, found in zip(models, formats, strict=True) if found == wanted]
        if len(matches) == 1:
            return _all_parts(ggufs, matches[0][0], repo)
        if matches:
            break
    if len(models) == 1 and formats[0] is None:
        return _all_parts(ggufs, models[0][0], repo)
    raise UnsupportedModel(
        f"No GGUF file of {repo} can be chosen automatically.",
        f"It has {_names(ggufs)}; a choice needs exactly one file in the first format found of "
        f"{', '.join(PREFERRED_FORMATS)}.",
        f"Name one: {repo}:FILE.gguf.",
    )


def _format_of(parts: tuple[str, ...]) -> str | None:
    split = parse_split_name(parts[0])
    return file_type_of(parts[0] if split is None else f"{split.stem}.gguf")


def _all_parts(ggufs: Sequence[FileSpec], name: str, repo: str) -> tuple[FileSpec, ...]:
    """Return a GGUF file, or all parts of the split one that it belongs to."""
    found = {file.name: file for file in ggufs}
    names = part_names(name)
    if missing := [part for part in names if part not in found]:
        raise ModelNotFound(
            f"{repo} lacks parts of a split GGUF file.",
            f"{len(missing)} of {len(names)} are missing, the first is {missing[0]}.",
            "Name another file of it, or another repository.",
        )
    return tuple(found[part] for part in names)


def _names(files: Sequence[FileSpec]) -> str:
    shown = ", ".join(file.name for file in files[:20]) or "none"
    return shown if len(files) <= 20 else f"{shown} and {len(files) - 20} more"
