"""The bytes of text that tokens stand for, and streaming decoding of tokens to text.

A token of a byte-level vocabulary is a fixed run of bytes, spelled in printable characters. A token of a vocabulary
with byte fallback is a text, with U+2581 for a space, or a single byte. Text is those bytes decoded as UTF-8, in one go
or token by token, with the same result.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.text.tokenizer_steps import SPACE

# Tokens whose bytes are kept, 240 bytes each: more than a text uses, but fewer than a large vocabulary has.
_MAX_SPELLED: Final = 4096


class TokenBytes:
    """The bytes of every token of a vocabulary, computed when they are asked for.

    Args:
        spelling_of: token id -> the vocabulary's spelling, or None for a row without a token.
        added: token id -> bytes of the tokens that are spelled as plain text.
        count: ids run from 0 to ``count - 1``.
        spelled: the bytes of a spelling.
    """

    def __init__(
        self,
        spelling_of: Callable[[int], str | None],
        added: Mapping[int, bytes],
        count: int,
        spelled: Callable[[str], bytes],
    ) -> None:
        self._spelling_of = spelling_of
        self._added = added
        self._count = count
        self._spelled = spelled
        self._known: dict[int, bytes] = {}

    def check(self, token_id: int) -> None:
        """Refuse an id that is not a row of the model."""
        if not isinstance(token_id, Integral) or not 0 <= token_id < self._count:
            raise ConfigError(
                "There is no such token.",
                f"Id {token_id!r:.40}, ids are 0 to {self._count - 1}.",
                "Pass ids of this model's tokenizer.",
            )

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for rows without one. Raises as :meth:`check`."""
        known = self._known.get(token_id)
        if known is None:
            known = self._added.get(token_id)
            if known is None:
                self.check(token_id)
                token = self._spelling_of(token_id)
                known = b"" if token is None else self._spelled(token)
            if len(self._known) >= _MAX_SPELLED:
                self._known.clear()
            self._known[token_id] = known
        return known


class IncrementalDecoder:
    """Turns tokens into text one by one.

    The pushes and the final :meth:`flush`, joined, are exactly ``tokenizer.decode(all ids)``. A character whose bytes
    are spread over several tokens appears with its last one; only bytes that no continuation can complete become
    U+FFFD.

    Args:
        bytes_of: token id -> the bytes of text that the token stands for.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], skipped: frozenset[int], *, drops_space: bool = False) -> None:
        self._bytes_of = bytes_of
        self._skipped = skipped
        self._drops_space = drops_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add one token and return the text that is complete now (possibly empty)."""
        if token_id in self._skipped:
            return ""
        data = self._bytes_of(token_id)
        if self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """End the text: return U+FFFD for an incomplete character, else nothing, and reset the decoder."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _byte_spelling() -> dict[str, int]:
    """Return GPT-2's alphabet: the printable character that stands for each byte in a vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF: Final = _byte_spelling()
"""The printable character that stands for a byte in a vocabulary -> that byte."""


def spelled_bytes(token: str) -> bytes:
    """Return the bytes of a vocabulary entry; entries outside GPT-2's alphabet are plain text."""
    values = [BYTE_OF.get(character) for character in token]
    return bytes(value for value in values if value is not None) if None not in values else token.encode()


_BYTE_TOKEN: Final = re.compile("<0x([0-9A-F]{2})>")


def fallback_bytes(token: str) -> bytes:
    """Return the bytes of an entry of a vocabulary with byte fallback."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode("utf-8", "replace")
