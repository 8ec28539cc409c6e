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
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPromptCache
from edge_rt.package.documents import to_document
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.package.manifest import FORMAT_VERSION, WEIGHTS_FILE, Manifest

Array = npt.NDArray[Any]

ROWS_VERSION: Final = 1
"""Layout of a block, and the arithmetic that its rows come from; raised when bits of rows change."""
MAGIC: Final = b"edge-rt rows"
HEADER: Final = struct.Struct("<16sII32s32sQ")
HASH_AT: Final = HEADER.size
TOKENS_AT: Final = HASH_AT + 32
ROWS_AT: Final = TOKENS_AT + 4 * BLOCK_TOKENS


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
        before = next_name(before, packed(token_ids[begin : begin + BLOCK_TOKENS]))
        names.append(before)
    return names


def packed(token_ids: Sequence[int]) -> bytes:
    """Return tokens as they are written."""
    return np.asarray(token_ids, "<i4").tobytes()


def next_name(before: bytes, tokens: bytes) -> bytes:
    """Return the name of a block behind another one."""
    return hashlib.sha256(before + tokens).digest()


class RowBlocks:
    """Blocks of one model's cache.

    Args:
        parts: returns the cache's memory, as ``NativeIOBinding.row_parts``.

    Attributes:
        key: as ``rows_key``.
        size: bytes of a block.
        row_bytes: bytes of its rows.
    """

    def __init__(self, key: bytes, parts: Callable[[], Sequence[Array]]) -> None:
        self.key = key
        self._parts = parts
        self.row_bytes = sum(part.shape[0] * BLOCK_TOKENS * part.shape[2] for part in parts())
        self.size = ROWS_AT + self.row_bytes

    def buffer(self) -> Array:
        """Return memory for one block."""
        return np.empty(self.size, np.uint8)

    def pack(self, before: bytes, token_ids: Sequence[int], rows: Array, block: Array) -> bool:
        """Write a block of tokens whose rows lie in the cache; return False if there is no cache any more.

        Args:
            before: name of the block before it; of the first one the key.
            rows: where the tokens' rows lie in memory, int ``[64]``.
        """
        tokens = packed(token_ids)
        header = self._header(before)
        block[: len(header)] = np.frombuffer(header, np.uint8)
        block[TOKENS_AT:ROWS_AT] = np.frombuffer(tokens, np.uint8)
        is_there = self.copy_from(rows, block[ROWS_AT:])
        block[len(header) : TOKENS_AT] = np.frombuffer(_digest(block), np.uint8)
        return is_there

    def copy_from(self, rows: Array, memory: Array) -> bool:
        """Copy up to 64 rows of the cache, in the order of a block; return False if there is no cache any more."""
        which, end = _slice_of(rows), 0
        for part in self._parts():
            begin, end = end, end + part.shape[0] * BLOCK_TOKENS * part.shape[2]
            copied = memory[begin:end].reshape(part.shape[0], BLOCK_TOKENS, part.shape[2])
            copied[:, : len(rows)] = part[:, which]
        return bool(end == self.row_bytes)

    def check_hash(self, block: Array) -> None:
        """Refuse a block that is not as it was written; see ``check``."""
        if block[HEADER.size : TOKENS_AT].tobytes() != _digest(block):
            raise InvalidPromptCache("Its SHA-256 is not that of its content.")

    def check(self, before: bytes, token_ids: Sequence[int], block: Array) -> None:
        """Refuse a block that is not that of some tokens behind another block, or not as it was written.

        Raises:
            InvalidPromptCache: in one sentence, which is not yet an error for a user.
        """
        header = self._header(before)
        if block[: len(header)].tobytes() != header:
            raise InvalidPromptCache("Its header is another one.")
        if block[TOKENS_AT:ROWS_AT].tobytes() != packed(token_ids):
            raise InvalidPromptCache("Its tokens are others.")
        self.check_hash(block)

    def unpack(self, block: Array, rows: Array) -> None:
        """Write the last rows of a block, which was checked, into the cache, as many as have a place there."""
        self.copy_to(rows, block[ROWS_AT:], BLOCK_TOKENS - len(rows))

    def copy_to(self, rows: Array, memory: Array, first: int) -> None:
        """Copy rows that lie in the order of a block, from the number ``first`` on, into the cache."""
        which, end = _slice_of(rows), 0
        for part in self._parts():
            begin, end = end, end + part.shape[0] * BLOCK_TOKENS * part.shape[2]
            copied = memory[begin:end].reshape(part.shape[0], BLOCK_TOKENS, part.shape[2])
            part[:, which] = copied[:, first : first + len(rows)]

    def follows(self, before: bytes, begin: bytes) -> bool:
        """Return whether a block that begins with these bytes, up to its rows, is one behind another block."""
        return begin[:HASH_AT] == self._header(before) and len(begin) == ROWS_AT

    def _header(self, before: bytes) -> bytes:
        return HEADER.pack(MAGIC, ROWS_VERSION, BLOCK_TOKENS, self.key, before, self.row_bytes)


def _slice_of(rows: Array) -> slice | Array:
    """Return rows that lie behind each other as a slice, which is copied faster."""
    first = int(rows[0]) if len(rows) else 0
    return slice(first, first + len(rows)) if np.array_equal(rows, np.arange(first, first + len(rows))) else rows


def _digest(block: Array) -> bytes:
    digest = hashlib.sha256(block[: HEADER.size].data)
    digest.update(block[TOKENS_AT:].data)
    return digest.digest()
