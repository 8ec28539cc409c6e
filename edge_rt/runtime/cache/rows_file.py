"""Blocks of rows of one prompt in a file that was named: of a saved chat, or in a package."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from edge_rt.errors import InvalidPromptCache
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.runtime.cache.block_folder import read_whole
from edge_rt.runtime.cache.row_blocks import (
    HEADER,
    MAGIC,
    ROWS_AT,
    ROWS_VERSION,
    TOKENS_AT,
    Array,
    RowBlocks,
    next_name,
)
from edge_rt.runtime.cache.row_states import RowStates, state_names
from edge_rt.system.files import NOT_READ, storage_errors

MOST_BLOCKS: Final = 1 << 18
"""Of one file; more tokens than any context has."""


class BlockSource(Protocol):
    """Where blocks and states are read from."""

    def read(self, name: bytes, block: Array) -> bool:
        """Read a block of some name; return whether there is one."""

    def spoilt(self, name: bytes, why: str) -> str:
        """Return what is said of a block that turned out to be damaged; it is not read again."""

    def states(self) -> Collection[bytes]:
        """Return the names of the states that there are."""

    def read_state(self, name: bytes, parts: Sequence[Array]) -> bool:
        """Read a state of some name, part by part; return whether there is one."""

    def spoilt_state(self, name: bytes, why: str) -> str:
        """Return what is said of a state that turned out to be damaged; it is not read again."""


class RowsFile:
    """Blocks of one prompt, one behind the other, and of a model with states that of the text's end.

    Args:
        blocks: of the model that reads it.
        states: of the same; None: it has none.

    Attributes:
        tokens: how many tokens it holds.

    Raises:
        InvalidPromptCache: it is malformed, or of another model, format of the cache or version. Rows are compared
            with their hashes when they are read.
        StorageError: it cannot be read.
    """

    def __init__(self, path: Path, blocks: RowBlocks, states: RowStates | None = None) -> None:
        self._path = path
        self._blocks = blocks
        self._of_states = states
        self._places: dict[bytes, int] = {}
        self._states: dict[bytes, int] = {}
        self._tail: list[int] = []
        with storage_errors(path, NOT_READ):
            for offset, name in self._names(blocks, states):
                self._places[name] = offset
        self.tokens = BLOCK_TOKENS * len(self._places) + len(self._tail)

    def _names(self, blocks: RowBlocks, states: RowStates | None) -> Iterator[tuple[int, bytes]]:
        if not self._path.is_file() or self._path.is_symlink():
            raise self._refusal("It is not a regular file.")
        with self._path.open("rb") as file:
            head, before = file.read(HEADER.size), blocks.key
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise self._refusal("It does not begin as such a file.")
            _, version, count, key, _, _ = HEADER.unpack(head)
            if version != ROWS_VERSION or count != BLOCK_TOKENS:
                raise self._refusal(f"Its version is {version}, this edge-rt reads {ROWS_VERSION}.")
            if key != blocks.key:
                raise self._refusal("It was written with another package, or another format of the cache.")
            size, behind = os.fstat(file.fileno()).st_size, 0 if states is None else states.size
            number, rest = divmod(size - behind, blocks.size)
            if rest or not 0 < number <= MOST_BLOCKS:
                of_state = f" and a state {behind}" if behind else ""
                raise self._refusal(f"It has {size} bytes; a block has {blocks.size}{of_state}.")
            for index in range(number):
                file.seek(index * blocks.size)
                begin = file.read(ROWS_AT)
                if not blocks.follows(before, begin):
                    raise self._refusal(f"Block {index} does not follow the one before it.")
                before = next_name(before, begin[TOKENS_AT:])
                yield index * blocks.size, before
            if states is not None:
                self._note_state(file, states, before, number * blocks.size)

    def _note_state(self, file: BinaryIO, states: RowStates, before: bytes, offset: int) -> None:
        file.seek(offset)
        try:
            self._tail = states.tail_of(before, file.read(ROWS_AT))
        except InvalidPromptCache as error:
            raise self._refusal(str(error)) from error
        ((_, name),) = state_names([before], self._tail, len(self._tail), len(self._tail))
        self._states[name] = offset

    def verify(self) -> None:
        """Compare all rows, and the state, with their hashes.

        Raises:
            InvalidPromptCache: they differ.
            StorageError: the file cannot be read.
        """
        block = self._blocks.buffer()
        with storage_errors(self._path, NOT_READ):
            for index, name in enumerate(self._places):
                try:
                    if self.read(name, block):
                        self._blocks.check_hash(block)
                except InvalidPromptCache as error:
                    raise self._refusal(f"Block {index}: {error}") from error
            for offset in self._states.values():
                assert self._of_states is not None
                with self._path.open("rb", buffering=0) as file:
                    file.seek(offset)
                    if not self._of_states.is_intact(file, block):
                        raise self._refusal("The SHA-256 of its state is not that of its content.")

    def _refusal(self, numbers: str) -> InvalidPromptCache:
        return InvalidPromptCache(f"{self._path} cannot be used.", numbers, "Leave it out, or write it again.")

    def read(self, name: bytes, block: Array) -> bool:
        """Read a block of some name; return whether there is one."""
        return self._read(self._places.get(name), [block])

    def states(self) -> Collection[bytes]:
        """Return the names of the states that there are."""
        return self._states.keys()

    def read_state(self, name: bytes, parts: Sequence[Array]) -> bool:
        """Read a state of some name, part by part; return whether there is one."""
        return self._read(self._states.get(name), parts)

    def _read(self, offset: int | None, parts: Sequence[Array]) -> bool:
        if offset is None:
            return False
        with self._path.open("rb", buffering=0) as file:
            file.seek(offset)
            return all(read_whole(file, part) for part in parts)

    def spoilt(self, name: bytes, why: str) -> str:
        """Return what is said of a block that turned out to be damaged; it is not read again."""
        self._places.pop(name, None)
        return self._said(why)

    def spoilt_state(self, name: bytes, why: str) -> str:
        """Return what is said of a state that turned out to be damaged; it is not read again."""
        self._states.pop(name, None)
        return self._said(why)

    def _said(self, why: str) -> str:
        return f"{self._path} is damaged, so a part of the prompt was computed again. {why}"


def key_of(path: Path) -> bytes | None:
    """Return the key of a file of blocks; None if it is none, a link, or of another version."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
    except OSError:
        return None
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        return None
    _, version, count, key, _, _ = HEADER.unpack(head)
    return key if (version, count) == (ROWS_VERSION, BLOCK_TOKENS) else None
