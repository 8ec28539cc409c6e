"""Which files of a hub repository are fetched: safetensors or GGUF weights and the files they need, never pickles.

If there are several GGUF files, the format that comes first in `PREFERRED_FORMATS` is chosen. 4-bit formats come first,
because decoding reads every weight once per token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from edge_rt.errors import ModelNotFound, UnsupportedModel
from edge_rt.store.files import FileSpec
from edge_rt.store.naming import HubReference, is_safe_path

PREFERRED_FORMATS = (
    *("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL"),
    *("Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
    *("BF16", "F16", "F32"),
)
CHECKPOINT_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "config.json",
    "generation_config.json",
    "chat_template*.json",
    "chat_template*.jinja",
    "LICENSE*",
    "README.md",
)
MAX_LICENCE_BYTES = 1 << 20
CONVERT = (
    "Convert it in an environment with PyTorch (model.save_pretrained(folder, safe_serialization=True)) "
    "or to GGUF with llama.cpp's converter."
)

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_CODE = (*_PICKLES, ".py", ".so", ".dll")
_FORMAT = re.compile(r"(?:^|[._-])((?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|FP16|FP32))$", re.IGNORECASE)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class HubListing:
    """The files of a repository.

    Attributes:
        repo: repository id.
        revision: the commit that was listed.
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


def gguf_format(name: str) -> str | None:
    """Return the weight format at the end of a GGUF file's name, such as ``Q4_0``; None if there is none."""
    match = _FORMAT.search(PurePosixPath(name).stem)
    return None if match is None else match[1].upper().replace("FP", "F")


def choose_files(listing: HubListing, reference: HubReference) -> tuple[FileSpec, ...]:
    """Choose what to fetch: one GGUF file with the licence, or the files of a safetensors checkpoint.

    Args:
        listing: the repository's files.
        reference: the repository, and one file of it if the user named one.

    Returns:
        The files; a GGUF file comes first.

    Raises:
        ModelNotFound: the named file does not exist.
        UnsupportedModel: the repository has no files that edge-rt reads, or the user must name one of them.
    """
    # File names are untrusted: paths that could leave the folder, and files that run code when loaded, are ignored.
    files = [file for file in listing.files if is_safe_path(file.name) and not file.name.lower().endswith(_CODE)]
    ggufs = [file for file in files if file.name.lower().endswith(".gguf")]
    licences = tuple(file for file in files if _is_licence(file))
    if reference.file is not None:
        return (_named(ggufs, reference.file, listing.repo), *licences)
    if ggufs:
        return (_preferred(ggufs, listing.repo), *licences)
    checkpoint = tuple(file for file in files if any(fnmatchcase(file.name, glob) for glob in CHECKPOINT_PATTERNS))
    checkpoint = tuple(file for file in checkpoint if "/" not in file.name)
    if any(file.name.endswith(".safetensors") for file in checkpoint):
        return checkpoint
    if any(is_pickle(file.name) for file in listing.files):
        raise UnsupportedModel(
            f"{listing.repo} holds its weights only as pickles.",
            "A pickle runs code when it is loaded; edge-rt reads GGUF and safetensors.",
            CONVERT,
        )
    raise UnsupportedModel(
        f"{listing.repo} holds no weights that edge-rt reads.",
        f"{len(listing.files)} files, none of them GGUF or safetensors.",
        "Name another repository.",
    )


def _is_licence(file: FileSpec) -> bool:
    return file.name.startswith("LICENSE") and "/" not in file.name and (file.size or 0) <= MAX_LICENCE_BYTES


def _named(ggufs: Sequence[FileSpec], name: str, repo: str) -> FileSpec:
    for file in ggufs:
        if file.name == name:
            return _whole(file)
    raise ModelNotFound(f"{repo} has no file {name!r}.", f"Its GGUF files: {_names(ggufs)}.", "Name one of them.")


def _preferred(ggufs: Sequence[FileSpec], repo: str) -> FileSpec:
    # "mmproj" files are image encoders that accompany a model.
    models = [file for file in ggufs if not PurePosixPath(file.name).name.lower().startswith("mmproj")]
    for wanted in PREFERRED_FORMATS:
        matches = [file for file in models if gguf_format(_unsplit(file.name)) == wanted]
        if len(matches) == 1:
            return _whole(matches[0])
        if matches:
            break
    if len(models) == 1 and gguf_format(_unsplit(models[0].name)) is None:
        return _whole(models[0])
    raise UnsupportedModel(
        f"No GGUF file of {repo} can be chosen automatically.",
        f"It has {_names(ggufs)}; a choice needs exactly one file in the first format found of "
        f"{', '.join(PREFERRED_FORMATS)}.",
        f"Name one: {repo}:FILE.gguf.",
    )


def _unsplit(name: str) -> str:
    path = PurePosixPath(name)
    return _SPLIT.sub("", path.stem) + path.suffix


def _whole(file: FileSpec) -> FileSpec:
    if _SPLIT.search(PurePosixPath(file.name).stem):
        raise UnsupportedModel(
            f"{file.name} is one part of a split GGUF file.",
            "edge-rt reads only models in one file.",
            "Name another file, or join the parts with llama.cpp's gguf-split.",
        )
    return file


def _names(files: Sequence[FileSpec]) -> str:
    shown = ", ".join(file.name for file in files[:20]) or "none"
    return shown if len(files) <= 20 else f"{shown} and {len(files) - 20} more"
