"""Rows of 64 tokens in all layers as bytes of a file: written from the cache's memory, checked, and put back.

A block holds what a model has computed for 64 tokens behind certain others: a header, the tokens, and their rows in
every layer in the order of the tokens. Its name is a hash of the name of the block before it and of its tokens, so a
name stands for a whole beginning of a prompt. Rows have the same bits on every machine, and so have blocks.

::

    16  "edge-rt rows", zeros
     4  version of the format
     4  tokens, 64
    32  key: what the rows depend on besides tokens (``rows_key``)
    32  name of the block before it; of the first one the key
     8  bytes of the rows
    32  SHA-256 of all the rest
   256  tokens, int32
        rows: layer by layer, keys then values, codes then scales; of each head by head, 64 rows
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPromptCache
from edge_rt.package.documents import to_document
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.package.manifest import FORMAT_VERSION, WEIGHTS_FILE, Manifest
from edge_rt.system.files import NOT_READ, storage_errors

Array = npt.NDArray[Any]

ROWS_VERSION: Final = 1
"""Layout of a block, and the arithmetic that its rows come from; raised when bits of rows change."""
MOST_BLOCKS: Final = 1 << 18
"""Of one file; more tokens than any context has."""

_MAGIC: Final = b"edge-rt rows"
_HEADER: Final = struct.Struct("<16sII32s32sQ")
_HASH_BYTES: Final = 32
_TOKENS_AT: Final = _HEADER.size + _HASH_BYTES
_ROWS_AT: Final = _TOKENS_AT + 4 * BLOCK_TOKENS


def rows_key(manifest: Manifest, kv_formats: Sequence[str], context: int) -> bytes:
    """Return a hash of what the rows of tokens depend on: graphs, weights, rotations, formats of the cache."""
    decoder = manifest.decoder
    assert decoder is not None, manifest.op_profile
    facts = {
        "rows": ROWS_VERSION,
        "graphs": FORMAT_VERSION,
        "files": {name: manifest.files[name].sha256 for name in (*manifest.graphs, WEIGHTS_FILE)},
        "decoder": to_document(decoder),
        "rotation": decoder.rotation(context),
        "kv_formats": list(kv_formats),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def block_names(key: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Return the names of the whole blocks that a prompt begins with."""
    names, before = [], key
    for begin in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = _name(before, _packed(token_ids[begin : begin + BLOCK_TOKENS]))
        names.append(before)
    return names


def _packed(token_ids: Sequence[int]) -> bytes:
    return np.asarray(token_ids, "<i4").tobytes()


def _name(before: bytes, tokens: bytes) -> bytes:
    return hashlib.sha256(before + tokens).digest()


class RowBlocks:
    """Blocks of one model's cache.

    Args:
        parts: returns the cache's memory, as ``NativeIOBinding.row_parts``.

    Attributes:
        key: as ``rows_key``.
        size: bytes of a block.
    """

    def __init__(self, key: bytes, parts: Callable[[], Sequence[Array]]) -> None:
        self.key = key
        self._parts = parts
        self._row_bytes = sum(part.shape[0] * BLOCK_TOKENS * part.shape[2] for part in parts())
        self.size = _ROWS_AT + self._row_bytes

    def buffer(self) -> Array:
        """Return memory for one block."""
        return np.empty(self.size, np.uint8)

    def pack(self, before: bytes, token_ids: Sequence[int], rows: Array, block: Array) -> bool:
        """Write a block of tokens whose rows lie in the cache; return False if there is no cache any more.

        Args:
            before: name of the block before it; of the first one the key.
            rows: where the tokens' rows lie in memory, int ``[64]``.
        """
        tokens = _packed(token_ids)
        header = self._header(before)
        block[: len(header)] = np.frombuffer(header, np.uint8)
        block[_TOKENS_AT:_ROWS_AT] = np.frombuffer(tokens, np.uint8)
        which, end = _slice_of(rows), _ROWS_AT
        for part in self._parts():
            begin, end = end, end + part.shape[0] * BLOCK_TOKENS * part.shape[2]
            block[begin:end].reshape(part.shape[0], BLOCK_TOKENS, part.shape[2])[:] = part[:, which]
        block[len(header) : _TOKENS_AT] = np.frombuffer(_digest(block), np.uint8)
        return bool(end == self.size)

    def check_hash(self, block: Array) -> None:
        """Refuse a block that is not as it was written; see ``check``."""
        if block[_HEADER.size : _TOKENS_AT].tobytes() != _digest(block):
            raise InvalidPromptCache("Its SHA-256 is not that of its content.")

    def check(self, before: bytes, token_ids: Sequence[int], block: Array) -> None:
        """Refuse a block that is not that of some tokens behind another block, or not as it was written.

        Raises:
            InvalidPromptCache: in one sentence, which is not yet an error for a user.
        """
        header = self._header(before)
        if block[: len(header)].tobytes() != header:
            raise InvalidPromptCache("Its header is another one.")
        if block[_TOKENS_AT:_ROWS_AT].tobytes() != _packed(token_ids):
            raise InvalidPromptCache("Its tokens are others.")
        self.check_hash(block)

    def unpack(self, block: Array, rows: Array) -> None:
        """Write the last rows of a block, which was checked, into the cache, as many as have a place there."""
        which, end = _slice_of(rows), _ROWS_AT
        for part in self._parts():
            begin, end = end, end + part.shape[0] * BLOCK_TOKENS * part.shape[2]
            part[:, which] = block[begin:end].reshape(part.shape[0], BLOCK_TOKENS, part.shape[2])[:, -len(rows) :]

    def _header(self, before: bytes) -> bytes:
        return _HEADER.pack(_MAGIC, ROWS_VERSION, BLOCK_TOKENS, self.key, before, self._row_bytes)


def _slice_of(rows: Array) -> slice | Array:
    """Return rows that lie behind each other as a slice, which is copied faster."""
    first = int(rows[0])
    return slice(first, first + len(rows)) if np.array_equal(rows, np.arange(first, first + len(rows))) else rows


def _digest(block: Array) -> bytes:
    digest = hashlib.sha256(block[: _HEADER.size].data)
    digest.update(block[_TOKENS_AT:].data)
    return digest.digest()


def key_of(path: Path) -> bytes | None:
    """Return the key of a file of blocks; None if it is none, a link, or of another version."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            magic, version, count, key, _, _ = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        return None
    return key if magic.startswith(_MAGIC) and (version, count) == (ROWS_VERSION, BLOCK_TOKENS) else None


class BlockSource(Protocol):
    """Where blocks are read from."""

    def read(self, name: bytes, block: Array) -> bool:
        """Read a block of some name; return whether there is one."""

    def spoilt(self, name: bytes, why: str) -> str:
        """Return what is said of a block that turned out to be damaged; it is not read again."""


class RowsFile:
    """Blocks of one prompt, one behind the other in a file that was named: of a saved chat, or in a package.

    Args:
        blocks: of the model that reads it.

    Attributes:
        tokens: how many tokens it holds.

    Raises:
        InvalidPromptCache: it is malformed, or of another model, format of the cache or version. Rows are compared
            with their hashes when they are read.
        StorageError: it cannot be read.
    """

    def __init__(self, path: Path, blocks: RowBlocks) -> None:
        self._path = path
        self._size = blocks.size
        self._places: dict[bytes, int] = {}
        with storage_errors(path, NOT_READ):
            for offset, name in self._names(blocks):
                self._places[name] = offset
        self.tokens = BLOCK_TOKENS * len(self._places)

    def _names(self, blocks: RowBlocks) -> Iterator[tuple[int, bytes]]:
        if not self._path.is_file() or self._path.is_symlink():
            raise self._refusal("It is not a regular file.")
        with self._path.open("rb") as file:
            head, before = file.read(_HEADER.size), blocks.key
            if len(head) < _HEADER.size or not head.startswith(_MAGIC):
                raise self._refusal("It does not begin as such a file.")
            _, version, count, key, _, _ = _HEADER.unpack(head)
            if version != ROWS_VERSION or count != BLOCK_TOKENS:
                raise self._refusal(f"Its version is {version}, this edge-rt reads {ROWS_VERSION}.")
            if key != blocks.key:
                raise self._refusal("It was written with another package, or another format of the cache.")
            number, rest = divmod(self._path.stat().st_size, blocks.size)
            if rest or not 0 < number <= MOST_BLOCKS:
                raise self._refusal(f"It has {self._path.stat().st_size} bytes; a block has {blocks.size}.")
            for index in range(number):
                file.seek(index * blocks.size)
                begin = file.read(_ROWS_AT)
                if begin[: _HEADER.size] != blocks._header(before) or len(begin) < _ROWS_AT:
                    raise self._refusal(f"Block {index} does not follow the one before it.")
                before = _name(before, begin[_TOKENS_AT:])
                yield index * blocks.size, before

    def verify(self, blocks: RowBlocks) -> None:
        """Compare the rows with their hashes.

        Raises:
            InvalidPromptCache: they differ.
            StorageError: the file cannot be read.
        """
        block = blocks.buffer()
        with storage_errors(self._path, NOT_READ):
            for index, name in enumerate(self._places):
                try:
                    if self.read(name, block):
                        blocks.check_hash(block)
                except InvalidPromptCache as error:
                    raise self._refusal(f"Block {index}: {error}") from error

    def _refusal(self, numbers: str) -> InvalidPromptCache:
        return InvalidPromptCache(f"{self._path} cannot be used.", numbers, "Leave it out, or write it again.")

    def read(self, name: bytes, block: Array) -> bool:
        """Read a block of some name; return whether there is one."""
        if (offset := self._places.get(name)) is None:
            return False
        with self._path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.readinto(block.data) == len(block)

    def spoilt(self, name: bytes, why: str) -> str:
        """Return what is said of a block that turned out to be damaged; it is not read again."""
        self._places.pop(name, None)
        return f"{self._path} is damaged, so a part of the prompt was computed again. {why}"
