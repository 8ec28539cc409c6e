"""Names of store entries, and references to repositories on the Hugging Face hub.

A store name is 1 to 96 characters of ``a-z 0-9 . _ -``, starts with a letter or digit, does not end in a dot, and is
not the name of a Windows device. So it is a valid folder name on every file system. References map to names like this:

- ``Org/Name`` on the hub is ``org--name`` (the hub itself treats names case-insensitively and forbids ``--``),
- ``Org/Name:File.Q8_0.gguf`` is ``org--name--file.q8_0``, and ``Org/Name:Q8_0`` is ``org--name--q8_0``,
- the address of a model's page, or of a file's, is the same as the reference,
- a local checkpoint is the stem of its file, or its folder's name, and the first 12 hexadecimal digits of its sha256.

Of a split GGUF file every part means all of them: references name its first part, and names leave the number out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

from edge_rt.errors import ConfigError
from edge_rt.system.checkpoint_names import (
    is_device_name,
    is_portable_name,
    is_portable_path,
    parse_split_name,
    part_names,
)

MAX_NAME = 96
MAX_HUB_PATH = 512

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_PAGE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<path>.+)", re.IGNORECASE)
_WEIGHTS = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32|FP16|FP32)", re.IGNORECASE)
_NO_MODELS = ("datasets", "spaces", "papers", "collections", "blog", "docs")
_FOREIGN = re.compile(r"[^a-z0-9._-]+")


def type_name(text: str) -> str:
    """Return a type of weights as llama.cpp writes it: in capitals, ``F16`` for ``fp16``."""
    return re.sub(r"^FP(?=16|32)", "F", text.upper())


@dataclass(frozen=True)
class HubReference:
    """``org/name``, ``org/name:file.gguf`` or ``org/name:Q8_0`` on the hub.

    Attributes:
        file: path of one GGUF file inside it, of the first part if it is split; None if edge-rt chooses what to fetch.
        weights: type of the GGUF file that is fetched, in capitals; None if edge-rt chooses.
    """

    repo: str
    file: str | None = None
    weights: str | None = None

    def __str__(self) -> str:
        chosen = self.file or self.weights
        return self.repo if chosen is None else f"{self.repo}:{chosen}"

    @property
    def store_name(self) -> str:
        """The name of this reference's entry in a store."""
        name = self.repo.replace("/", "--")
        if self.file is not None:
            split = parse_split_name(PurePosixPath(self.file).name)
            name += f"--{PurePosixPath(self.file).stem if split is None else split.stem}"
        elif self.weights is not None:
            name += f"--{self.weights}"
        return safe_name(name)


def is_name(text: str) -> bool:
    """Return whether ``text`` can be the name of a store entry."""
    return _NAME.fullmatch(text) is not None and is_portable_name(text)


def check_name(text: str) -> str:
    """Return ``text`` if it can be the name of a store entry."""
    if not is_name(text):
        raise ConfigError(
            f"{text[:120]!r} is not a valid model name.",
            f"A name has 1 to {MAX_NAME} characters of a-z, 0-9, '.', '_' and '-', starts with a letter or digit, "
            "does not end in a dot, and is not the name of a Windows device, such as 'con' or 'nul.gguf'.",
            "Choose another name.",
        )
    return text


def safe_name(text: str) -> str:
    """Map any text to a valid store name; a name that must be cut ends in 8 digits of the text's hash."""
    name = _FOREIGN.sub("-", text.lower()).lstrip("._-").rstrip(".") or "model"
    if is_device_name(name):
        name = f"model-{name}"
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return name


def local_name(stem: str, sha256: str) -> str:
    """Return the store name of a local checkpoint: its own, then 12 digits of its hash: equal content is shared."""
    return f"{safe_name(stem)[: MAX_NAME - 13]}-{sha256[:12]}"


def is_safe_path(text: str) -> bool:
    """Return whether ``text`` is a relative path in POSIX form that stays inside its folder, on every system."""
    return len(text) <= MAX_HUB_PATH and is_portable_path(text)


def _of_page(address: str, path: str) -> str:
    """Return the reference that the address of a page of the hub stands for, from what follows its host."""
    org, _, rest = unquote(path.partition("?")[0].partition("#")[0]).strip("/").partition("/")
    name, _, rest = rest.partition("/")
    # A page of files: /tree/REVISION, /blob/REVISION/FILE, or the address that a file is fetched from.
    kind, _, rest = rest.partition("/")
    revision, _, file = rest.partition("/")
    is_file = kind in ("blob", "resolve") and file.lower().endswith(".gguf")
    if org in _NO_MODELS or not name or revision not in ("", "main") or not (is_file or not file):
        raise ConfigError(
            f"{address[:120]!r} is not the address of a model.",
            "edge-rt takes pages of models and of GGUF files, on the branch 'main'.",
            "Write org/name, or org/name:file.gguf.",
        )
    return f"{org}/{name}:{file}" if is_file else f"{org}/{name}"


def parse_hub_reference(text: str) -> HubReference | None:
    """Parse a reference to the hub, or the address of a page there; return None if ``text`` has the form of neither."""
    if (page := _PAGE.fullmatch(text)) is not None:
        text = _of_page(text, page["path"])
    from edge_rt.system.checkpoint_names import is_repository

    repo, colon, file = text.partition(":")
    if not is_repository(repo):
        return None
    if not colon:
        # "folder/model.gguf" is a path that does not exist, not a repository.
        return None if repo.lower().endswith(".gguf") else HubReference(repo)
    if _WEIGHTS.fullmatch(file):
        return HubReference(repo, weights=type_name(file))
    if not is_safe_path(file) or not file.lower().endswith(".gguf"):
        raise ConfigError(
            f"{file[:120]!r} does not name a GGUF file of {repo}.",
            "The part after the colon is a type of weights, or a relative path that ends in '.gguf'.",
            f"Write org/name:Q8_0 or org/name:file.gguf. What there is: edge-rt models {repo}",
        )
    return HubReference(repo, part_names(file)[0])
