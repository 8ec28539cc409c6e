"""Names of a checkpoint's files, of the parts of a GGUF file that was split, and of the hub library's cache.

Parts are named ``NAME-00001-of-00003.gguf`` and so on. The cache is read and never written: there
``models--ORG--NAME/snapshots/REVISION/FILE`` is a link to ``models--ORG--NAME/blobs/HASH``, and ``refs/main`` has the
revision that was fetched last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

CONFIG_FILE: Final = "config.json"
TOKENIZER_FILE: Final = "tokenizer.json"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
TOOL_TEMPLATE_FILE: Final = "additional_chat_templates/tool_use.jinja"
OLD_TEMPLATE_FILE: Final = "chat_template.json"
GENERATION_FILE: Final = "generation_config.json"
INDEX_FILE: Final = "model.safetensors.index.json"
SINGLE_FILE: Final = "model.safetensors"
CARD_FILE: Final = "README.md"
WEIGHTS_SUFFIX: Final = ".safetensors"
ADAPTER_CONFIG_FILE: Final = "adapter_config.json"
ADAPTER_FILE: Final = "adapter_model.safetensors"
MODULES_FILE: Final = "modules.json"
PROMPTS_FILE: Final = "config_sentence_transformers.json"
POOLING_FILE: Final = "1_Pooling/config.json"
"""How states of tokens become an embedding, where a checkpoint is made for that."""
STORED_POOLING_FILE: Final = "1_Pooling.config.json"
"""Its name in the store, where folders are not kept."""
TEXT_FILES: Final = (
    *(STORED_POOLING_FILE, POOLING_FILE),
    *(TOOL_TEMPLATE_FILE, TEMPLATE_FILE, OLD_TEMPLATE_FILE, CONFIG_FILE, PROMPTS_FILE, GENERATION_FILE, INDEX_FILE),
    *(MODULES_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE),
)
"""Files that an export of a folder reads beside the tensors, in the order of their names."""


def flat_name(path: str) -> str:
    """Return the name that a file of a repository has in the store, where folders are not kept."""
    return STORED_POOLING_FILE if path == POOLING_FILE else PurePosixPath(path).name


def stored_beside(folder: Path, path: str) -> Path | None:
    """Return where a folder has a file of a repository, in its own folder or as the store has it; None without it."""
    return next((one for one in (folder / path, folder / flat_name(path)) if one.is_file()), None)


MAX_PARTS: Final = 1000
_PART: Final = re.compile(
    r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<suffix>\.gguf)", re.DOTALL | re.IGNORECASE
)


@dataclass(frozen=True)
class SplitName:
    """What the name of a part says."""

    stem: str
    count: int
    suffix: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parts in their order."""
        return tuple(f"{self.stem}-{number + 1:05}-of-{self.count:05}{self.suffix}" for number in range(self.count))


def parse_split_name(name: str) -> SplitName | None:
    """Return what the name of a part says, which may be a path; None for a name that is not one of a part."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]) <= MAX_PARTS:
        return None
    return SplitName(match["stem"], int(match["count"]), match["suffix"])


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts of the file that a part belongs to; only the name itself if it is not a part."""
    split = parse_split_name(name)
    return (name,) if split is None else split.names


MAX_NAME_BYTES: Final = 255
_FORBIDDEN: Final = frozenset('<>:"/\\|?*')
_DEVICES: Final = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"]
)
"""Windows opens a device for these names in every folder, whatever follows the first dot."""


def is_device_name(name: str) -> bool:
    """Return whether Windows treats a file name as a device, such as ``nul``, ``NUL.txt`` and ``com1 .gguf``."""
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


def is_portable_name(name: str) -> bool:
    """Return whether a name is a valid file or folder name on every system, and is not a path to another folder.

    These are refused: names that are empty, ``.`` or ``..``, or have separators or drive letters; control characters
    and ``<>:"|?*``; dots and spaces at the end, which Windows drops; Windows device names; and more than 255 bytes.
    """
    if not name or name[-1] in ". " or not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        return False
    return not is_device_name(name) and len(name.encode(errors="replace")) <= MAX_NAME_BYTES


def is_portable_path(path: str) -> bool:
    """Return whether all parts of a relative path are portable names, so that it stays inside its folder."""
    return all(is_portable_name(part) for part in path.split("/"))


_REPOSITORY: Final = re.compile(r"models--(?:.+--)?(?P<name>.+)")
_REPOSITORY_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[0-9a-f]{7,64}")


def is_repository(text: str) -> bool:
    """Return whether a text has the form of a repository's name, ``org/name``; a shell takes it as it is."""
    parts = text.split("/")
    return len(parts) == 2 and all(map(_REPOSITORY_PART.fullmatch, parts))


def _repository(path: Path) -> Path | None:
    """Return the folder of the repository that a snapshot, or a file of one, belongs to."""
    for parent in path.parents:
        if parent.name == "snapshots" and _REPOSITORY.fullmatch(parent.parent.name):
            return parent.parent
    return None


def is_blob_link(path: Path) -> bool:
    """Return whether a link is one of a snapshot and leads to a file of the same repository, and to nothing else."""
    repository = _repository(path.absolute())
    if repository is None:
        return False
    try:
        # Both without links: neither the folder of the files nor a file there may be one that leads elsewhere.
        return path.resolve(strict=True).parent == repository.resolve(strict=True) / "blobs"
    except (OSError, RuntimeError):
        return False


def folder_name(folder: Path) -> str:
    """Return the name of the model in a folder: the folder's own, or that of the repository of a snapshot."""
    path = folder.resolve()
    repository = _repository(path)
    match = None if repository is None or repository != path.parent.parent else _REPOSITORY.fullmatch(repository.name)
    return path.name if match is None else match["name"]


def find_snapshot(cache: Path, repo: str) -> Path | None:
    """Return the snapshot of a repository that was fetched last from its branch ``main``; None if there is none."""
    repository = cache / f"models--{repo.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    folder = repository / "snapshots" / revision
    return folder if _REVISION.fullmatch(revision) and folder.is_dir() else None
