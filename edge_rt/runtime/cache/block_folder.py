"""A folder of blocks of rows: private, bounded in size, shared by processes, with files that are absent or whole.

::

    DIR/KEY/about.json      what the blocks belong to, for listings
    DIR/KEY/NAME.rows       a block
    DIR/KEY/NAME.state      the state of a text, of models whose layers have some

A file is written under another name and renamed, and never changes, so that processes need no locks. Whatever else is
in the folder is left alone.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, StorageError
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.system.byte_size import human_bytes
from edge_rt.system.files import O_BINARY, storage_errors, write_atomically
from edge_rt.system.json_files import read_object

Array = npt.NDArray[Any]

LEAST_TOKENS: Final = 128
"""Shorter texts are not stored: small talk would fill the folder. Measured with SmolLM2 and an int8 cache: 64 tokens
are read in 0.9 ms and written in 1 ms; computing them takes 17 ms."""
USUAL_SIZE: Final = 2 << 30
"""Bytes of a folder at most, if nothing else is asked for."""
_ABOUT: Final = "about.json"
_FORMAT: Final = "edge-rt prompt cache"
_MOST_ABOUT: Final = 64 << 10
_KEY: Final = re.compile(r"[0-9a-f]{16}")
_BLOCK: Final = re.compile(r"[0-9a-f]{32}\.(rows|state)")
_UNFINISHED: Final = re.compile(r"\.[0-9a-f.a-z]{1,40}\.[0-9a-f]{12}\.tmp")
_STALE_SECONDS: Final = 3600.0
_READ: Final = os.O_RDONLY | O_BINARY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class BlockFolder:
    """The blocks of one key in a folder, and states behind them; it is made if it is absent.

    Args:
        about: what the blocks belong to, in words.
        size: bytes of a block.
        limit: bytes of all files in the folder at most, those of other keys included.
        state_size: bytes of a state; 0: rows are enough to go on from.

    Attributes:
        most_blocks: how many blocks of this size there is room for, beside a state.

    Raises:
        ConfigError: the limit has no room for the shortest prompt that is stored.
        StorageError: it cannot be made, is no folder, or is another user's.
    """

    def __init__(
        self, root: Path, key: bytes, about: Mapping[str, Any], *, size: int, limit: int, state_size: int = 0
    ) -> None:
        self.root, self.size, self.state_size, self.limit = root, size, state_size, limit
        self.most_blocks = (limit - state_size) // size
        least = LEAST_TOKENS // BLOCK_TOKENS * size + state_size
        if limit < least:
            raise ConfigError(
                "The prompt cache is too small to keep a prompt.",
                f"It may have {human_bytes(limit)}, {LEAST_TOKENS} tokens of this model need {human_bytes(least)}.",
                "Give it more, or leave the size out.",
            )
        self._path = root / key.hex()[:16]
        self._about = {"format": _FORMAT, **about, "block_bytes": size}
        if state_size:
            self._about["state_bytes"] = state_size
        with storage_errors(root, "cannot be used as a prompt cache"):
            for folder in (root, self._path):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _require_own(folder, is_root=folder == root)

    def _file(self, name: bytes, *, is_state: bool = False) -> Path:
        return self._path / f"{name.hex()[:32]}.{'state' if is_state else 'rows'}"

    def has(self, name: bytes) -> bool:
        """Return whether there is a block of that name, intact or not."""
        return self._has(self._file(name), self.size)

    def has_state(self, name: bytes) -> bool:
        """Return whether there is a state of that name, intact or not."""
        return self._has(self._file(name, is_state=True), self.state_size)

    def _has(self, path: Path, size: int) -> bool:
        try:
            return path.lstat().st_size == size
        except OSError:
            return False

    def read(self, name: bytes, block: Array) -> bool:
        """Read a block of some name; return whether there is one, of this user and of the size that it must have."""
        return _read(self._file(name), [block])

    def states(self) -> set[bytes]:
        """Return the names of the states that there are, intact or not."""
        found = set()
        with suppress(OSError), os.scandir(self._path) as entries:
            for entry in entries:
                if _BLOCK.fullmatch(entry.name) and entry.name.endswith(".state"):
                    found.add(bytes.fromhex(entry.name[:32]))
        return found

    def read_state(self, name: bytes, parts: Sequence[Array]) -> bool:
        """Read a state of some name, part by part; return whether there is one, as ``read``."""
        return _read(self._file(name, is_state=True), parts)

    def spoilt(self, name: bytes, why: str) -> str:
        """Return what is said of a block that turned out to be damaged; it is removed."""
        return self._spoilt(self._file(name), why)

    def spoilt_state(self, name: bytes, why: str) -> str:
        """Return what is said of a state that turned out to be damaged; it is removed."""
        return self._spoilt(self._file(name, is_state=True), why)

    def _spoilt(self, path: Path, why: str) -> str:
        with suppress(OSError):
            path.unlink()
        return f"{path} was damaged, and is removed; a part of the prompt was computed again. {why}"

    def write(self, name: bytes, block: Array) -> None:
        """Write a block of some name.

        Raises:
            StorageError: it cannot be written.
        """
        # Not synced: what a power failure leaves has not its hash, and is computed again.
        write_atomically(self._file(name), [block.data], private=True, durable=False)

    def write_state(self, name: bytes, parts: Sequence[Array]) -> None:
        """Write a state of some name, as ``write``."""
        path = self._file(name, is_state=True)
        write_atomically(path, (as_bytes(part) for part in parts), private=True, durable=False)

    def touch(self, names: Sequence[bytes], states: Mapping[bytes, int] | None = None) -> None:
        """Note that blocks were used now; of a prompt the first ones count as used last, because all need them.

        Args:
            states: name of a state -> the blocks before it, which count as used later than it.
        """
        now = time.time_ns()
        used = {self._file(name): 2 * index for index, name in enumerate(names)}
        used |= {self._file(name, is_state=True): 2 * count - 1 for name, count in (states or {}).items()}
        for path, before in used.items():
            with suppress(OSError):
                os.utime(path, ns=(now - before, now - before), **_NO_FOLLOW)

    def make_room(self, count: int, states: int = 0) -> None:
        """Remove what was not used for the longest time, until ``count`` more blocks and some states fit the limit.

        The model's folder is made again if all prompts were cleared in the meantime.

        Raises:
            StorageError: the folder cannot be written.
        """
        with storage_errors(self.root, "cannot be used as a prompt cache"):
            self._path.mkdir(mode=0o700, exist_ok=True)
            _require_own(self._path, is_root=False)
        if not (self._path / _ABOUT).exists():
            document = json.dumps(self._about).encode()
            write_atomically(self._path / _ABOUT, [document], private=True, durable=False)
        self.trim(count * self.size + states * self.state_size)

    def trim(self, more: int = 0) -> None:
        """Remove files as ``make_room``; while several processes write, there may be more of them than the limit."""
        files = sorted(_blocks(self.root), key=lambda file: file.used)
        total = sum(file.size for file in files) + more
        for file in files:
            if total <= self.limit:
                break
            with suppress(OSError):
                file.path.unlink()
            total -= file.size


_NO_FOLLOW: Final[dict[str, Any]] = {"follow_symlinks": False} if os.utime in os.supports_follow_symlinks else {}


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of an array that lies in one piece."""
    return array.reshape(-1).view(np.uint8).data


def _read(path: Path, parts: Sequence[Array]) -> bool:
    """Fill arrays with a file of this user's that has just as many bytes; return whether it is one."""
    size = sum(part.nbytes for part in parts)
    try:
        with os.fdopen(os.open(path, _READ), "rb", buffering=0) as file:
            is_own = _is_own(os.fstat(file.fileno()), size)
            return is_own and all(read_whole(file, part) for part in parts)
    except OSError:
        return False


def read_whole(file: FileIO, part: Array) -> bool:
    """Fill an array from a file; return whether there were so many bytes."""
    memory = as_bytes(part)
    while memory.nbytes and (count := file.readinto(memory)):
        memory = memory[count:]
    return not memory.nbytes


def _is_own(facts: os.stat_result, size: int) -> bool:
    """Return whether a file is a regular one of this user's, with a number of bytes."""
    is_users = not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
    return stat.S_ISREG(facts.st_mode) and is_users and facts.st_size == size


def _require_own(folder: Path, *, is_root: bool) -> None:
    """Refuse a folder that is another user's, or below the root a link: its files could be exchanged."""
    facts = folder.stat() if is_root else folder.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise StorageError(f"{folder} is not a folder.", "A prompt cache is kept in one.", "Choose another name.")
    if hasattr(os, "geteuid") and facts.st_uid != os.geteuid():
        raise StorageError(
            f"{folder} belongs to another user.",
            f"Its owner has the number {facts.st_uid}, this is {os.geteuid()}.",
            "Choose a folder of your own: a prompt cache holds prompts.",
        )


@dataclass(frozen=True)
class _File:
    path: Path
    size: int
    used: int


def _key_folders(root: Path) -> Iterator[Path]:
    with storage_errors(root, "cannot be read"):
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name) if root.is_dir() else ():
            if _KEY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _blocks(root: Path) -> Iterator[_File]:
    """Yield all blocks of a folder; what killed writers have left is removed."""
    for folder in _key_folders(root):
        yield from _blocks_of(folder)


def _blocks_of(folder: Path) -> Iterator[_File]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(facts.st_mode):
                    continue
                if _BLOCK.fullmatch(entry.name):
                    yield _File(Path(entry.path), facts.st_size, facts.st_mtime_ns)
                elif _UNFINISHED.fullmatch(entry.name) and time.time() - facts.st_mtime > _STALE_SECONDS:
                    Path(entry.path).unlink()


@dataclass(frozen=True)
class StoredPrompts:
    """What a prompt cache holds of one model with one format of the cache.

    Attributes:
        path: its folder.
        model: name of the model.
        kv_format: format of the KV cache.
        tokens: tokens whose rows are stored.
        bytes: of their files.
        used: when one of them was last used, in seconds since 1970; 0 if there is none.
    """

    path: Path
    model: str
    kv_format: str
    tokens: int
    bytes: int
    used: float


def list_prompts(root: Path) -> list[StoredPrompts]:
    """Return what a prompt cache holds, model by model; nothing if it is absent.

    Raises:
        StorageError: the folder cannot be read.
    """
    result = []
    for folder in _key_folders(root):
        about = _read_about(folder / _ABOUT)
        files = list(_blocks_of(folder))
        if about.get("format") != _FORMAT and not files:
            continue
        model, kv = str(about.get("model", "?"))[:200], str(about.get("kv_format", "?"))[:80]
        used = max((file.used for file in files), default=0) / 1e9
        tokens = BLOCK_TOKENS * sum(file.path.suffix == ".rows" for file in files)
        result.append(StoredPrompts(folder, model, kv, tokens, sum(file.size for file in files), used))
    return result


def _read_about(path: Path) -> dict[str, Any]:
    """Return what a file says of its blocks; nothing if it is malformed, or a pipe or link, which could block."""
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        return read_object(path, _MOST_ABOUT, ValueError)
    except (StorageError, ValueError):
        return {}


def clear_prompts(root: Path) -> int:
    """Remove all that a prompt cache holds, and return its bytes; other files in the folder stay.

    Raises:
        StorageError: something cannot be removed.
    """
    freed = 0
    for folder in _key_folders(root):
        with storage_errors(folder, "cannot be removed"):
            for entry in list(os.scandir(folder)):
                is_ours = entry.name == _ABOUT or _BLOCK.fullmatch(entry.name) or _UNFINISHED.fullmatch(entry.name)
                if is_ours and not entry.is_dir(follow_symlinks=False):
                    freed += entry.stat(follow_symlinks=False).st_size
                    with suppress(FileNotFoundError):
                        Path(entry.path).unlink()
            with suppress(OSError):
                folder.rmdir()
    return freed
