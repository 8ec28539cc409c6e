"""The state of a text as bytes of a file, with the rows behind its last whole block: written, checked and put back.

Rows do not make a state again, so who goes on from rows that are stored needs a state that was stored as well: behind
exactly the tokens that are gone on with. Its name is a hash of the name of the block before it, and of the tokens
behind that block, up to 63. States are float32, and have the same bits on every machine.

::

    16  "edge-rt state", zeros
     4  version of the format
     4  tokens behind the block
    32  key, as of blocks
    32  name of the block before it; the key where there is none
     8  bytes of the state
    32  SHA-256 of all the rest
   256  tokens, int32; behind them -1
        rows as in a block; behind them zeros
        state: of every layer that has one the inputs of its convolution, then its state, float32
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Final

import numpy as np

from edge_rt.errors import InvalidPromptCache
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.runtime.cache.block_folder import read_whole
from edge_rt.runtime.cache.row_blocks import HASH_AT, HEADER, ROWS_AT, TOKENS_AT, Array, RowBlocks, packed

STATES_VERSION: Final = 1
"""Layout of a file; raised when bits of states change."""
MAGIC: Final = b"edge-rt state"
_MISSING: Final = -1


def state_names(names: Sequence[bytes], token_ids: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield every length of a text from ``begin`` to ``end``, with the name of the state behind so many tokens.

    Args:
        names: the key, then the names of the text's whole blocks.
    """
    tokens = packed(token_ids[:end])
    for block in range(begin // BLOCK_TOKENS, end // BLOCK_TOKENS + 1):
        digest = hashlib.sha256(MAGIC + names[block])
        first = BLOCK_TOKENS * block
        for length in range(first, min(first + BLOCK_TOKENS, end + 1)):
            if length > first:
                digest.update(tokens[4 * length - 4 : 4 * length])
            if length >= begin:
                yield length, digest.copy().digest()[:16]


class RowStates:
    """States behind blocks of one model's cache.

    Args:
        state_bytes: of a state.

    Attributes:
        size: bytes of a file.
    """

    def __init__(self, blocks: RowBlocks, state_bytes: int) -> None:
        self._blocks = blocks
        self._state_bytes = state_bytes
        self.size = blocks.size + state_bytes

    def pack(self, before: bytes, token_ids: Sequence[int], rows: Array, state: Sequence[Array], head: Array) -> bool:
        """Write what stands before a state; return False if there is no cache any more.

        Args:
            before: name of the block before it; the key where there is none.
            token_ids: behind that block.
            rows: where these tokens' rows lie in memory.
            state: its parts.
            head: memory as of a block.
        """
        assert sum(part.nbytes for part in state) == self._state_bytes, self._state_bytes
        header, tokens = self._header(before, len(token_ids)), _padded(token_ids)
        head[:HASH_AT] = np.frombuffer(header, np.uint8)
        head[TOKENS_AT:ROWS_AT] = np.frombuffer(tokens, np.uint8)
        head[ROWS_AT:] = 0
        is_there = self._blocks.copy_from(rows, head[ROWS_AT:])
        head[HASH_AT:TOKENS_AT] = np.frombuffer(_digest(head, state), np.uint8)
        return is_there

    def check(self, before: bytes, token_ids: Sequence[int], head: Array, state: Sequence[Array]) -> None:
        """Refuse a state that is not that of some tokens behind a block, or not as it was written.

        Raises:
            InvalidPromptCache: in one sentence, which is not yet an error for a user.
        """
        if head[:HASH_AT].tobytes() != self._header(before, len(token_ids)):
            raise InvalidPromptCache("Its header is another one.")
        if head[TOKENS_AT:ROWS_AT].tobytes() != _padded(token_ids):
            raise InvalidPromptCache("Its tokens are others.")
        if head[HASH_AT:TOKENS_AT].tobytes() != _digest(head, state):
            raise InvalidPromptCache("Its SHA-256 is not that of its content.")

    def is_intact(self, file: FileIO, memory: Array) -> bool:
        """Return whether a file goes on with a whole state as it was written.

        Args:
            memory: as of a block, for pieces of it.
        """
        if not read_whole(file, memory):
            return False
        written = memory[HASH_AT:TOKENS_AT].tobytes()
        digest = _begun(memory)
        for begin in range(0, self._state_bytes, len(memory)):
            piece = memory[: min(len(memory), self._state_bytes - begin)]
            if not read_whole(file, piece):
                return False
            digest.update(piece.data)
        return digest.digest() == written

    def tail_of(self, before: bytes, head: bytes) -> list[int]:
        """Return the tokens behind the block, of a file that begins with so many bytes.

        Raises:
            InvalidPromptCache: it is no state behind this block; as ``check``.
        """
        _, _, count, _, _, _ = HEADER.unpack(head[:HASH_AT])
        if count >= BLOCK_TOKENS or head[:HASH_AT] != self._header(before, count):
            raise InvalidPromptCache("The state behind its blocks does not follow them.")
        tokens: list[int] = np.frombuffer(head[TOKENS_AT:ROWS_AT], "<i4").tolist()
        return tokens[:count]

    def unpack(self, head: Array, rows: Array, first: int) -> None:
        """Write rows of a head, which was checked, from the number ``first`` on, into the cache."""
        self._blocks.copy_to(rows, head[ROWS_AT:], first)

    def _header(self, before: bytes, count: int) -> bytes:
        magic = MAGIC.ljust(16, b"\0")
        return HEADER.pack(magic, STATES_VERSION, count, self._blocks.key, before, self._state_bytes)


def _padded(token_ids: Sequence[int]) -> bytes:
    return packed([*token_ids, *[_MISSING] * (BLOCK_TOKENS - len(token_ids))])


def _begun(head: Array) -> hashlib._Hash:
    digest = hashlib.sha256(head[:HASH_AT].data)
    digest.update(head[TOKENS_AT:].data)
    return digest


def _digest(head: Array, state: Sequence[Array]) -> bytes:
    digest = _begun(head)
    for part in state:
        digest.update(part.data)
    return digest.digest()
