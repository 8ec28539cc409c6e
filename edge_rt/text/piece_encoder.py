"""Encodes text between added tokens: piece by piece, in bounded memory, and not into tokens that nobody may write."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import tokenizers

from edge_rt.errors import InputError, InvalidTokenizer
from edge_rt.system.machine import return_free_memory
from edge_rt.text.tokenizer_check import FETCH_AGAIN, invalid
from edge_rt.text.tokenizer_cuts import PIECE_CHARACTERS, Places, cut

# Tokens that a cut in the wrong place may add.
_SPLIT_TOKENS: Final = 8
_SAMPLES: Final = 16


class PieceEncoder:
    """Encodes through the library, which finds no added tokens.

    Args:
        places: where texts can be cut; None: nowhere.
    """

    def __init__(self, library: tokenizers.Tokenizer, places: Places | None) -> None:
        self._library = library
        self._places = places

    def encode(self, parts: Iterable[int | str], forbidden: frozenset[int], length: int) -> list[int]:
        """Return the ids of added tokens, and of the texts between them.

        Args:
            forbidden: ids that no text becomes.
        """
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(
                    token_id for piece in cut(part, self._places) for token_id in self._encode_piece(piece, forbidden)
                )
        if length > PIECE_CHARACTERS:
            # The library takes hundreds of bytes per character of its input.
            return_free_memory()
        return ids

    def encode_within(
        self, parts: Iterable[int | str], forbidden: frozenset[int], most: int, length: int
    ) -> list[int] | int:
        """Return the ids as :meth:`encode`; or, if there are more than ``most``, a lower bound of their number."""
        ids: list[int] = []
        try:
            for part in parts:
                if isinstance(part, int):
                    ids.append(part)
                for piece in () if isinstance(part, int) else cut(part, self._places):
                    least = self._least_of_stretch(piece, most - len(ids))
                    if len(ids) + least > most:
                        return len(ids) + least
                    ids.extend(self._encode_piece(piece, forbidden))
                    if len(ids) > most:
                        return len(ids)
            return ids if len(ids) <= most else len(ids)
        finally:
            if length > PIECE_CHARACTERS:
                return_free_memory()

    def estimate(self, text: str) -> int:
        """Return about how many tokens a text has, from samples of it that are spread evenly."""
        starts = list(range(0, len(text), PIECE_CHARACTERS))
        if len(starts) > _SAMPLES:
            step = (len(text) - PIECE_CHARACTERS) / (_SAMPLES - 1)
            starts = [round(number * step) for number in range(_SAMPLES)]
        samples = [text[start : start + PIECE_CHARACTERS] for start in starts]
        tokens, characters = sum(len(self._encode(sample)) for sample in samples), sum(map(len, samples))
        return round(tokens * len(text) / characters) if characters else 0

    def longest_stretch(self, text: str) -> int:
        """Return the UTF-8 bytes of the longest part of a text that has to be encoded at once."""
        return max(len(piece.encode("utf-8", "surrogatepass")) for piece in cut(text, self._places))

    def _least_of_stretch(self, stretch: str, most: int) -> int:
        """Return a lower bound of the tokens of a text without places to cut, or 0 if it may fit ``most`` tokens.

        The text is counted in parts: a cut in the wrong place adds a token or two.
        """
        least = 0
        if len(stretch) > 2 * PIECE_CHARACTERS:
            for start in range(0, len(stretch), PIECE_CHARACTERS):
                least += max(len(self._encode(stretch[start : start + PIECE_CHARACTERS])) - _SPLIT_TOKENS, 0)
                if least > most:
                    return least
        return 0

    def _encode_piece(self, text: str, forbidden: frozenset[int]) -> list[int]:
        """Encode text without added tokens, and without the ``forbidden`` ones that merges could lead to."""
        ids = self._encode(text)
        return ids if forbidden.isdisjoint(ids) else self._encode_apart(text, forbidden)

    def _encode(self, text: str) -> list[int]:
        try:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        except BaseException as error:  # panics of the library are not an Exception
            reraise_unless_library(error)
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(
                    "The text has a lone surrogate, which is not a character.",
                    "Code points U+D800 to U+DFFF occur in pairs in UTF-16 only.",
                    'Clean it first, for example with text.encode("utf-8", "replace").decode().',
                ) from error
            raise InvalidTokenizer(
                "The tokenizer failed on this text.", f"{len(text)} characters: {str(error)[:200]}.", FETCH_AGAIN
            ) from error

    def _encode_apart(self, text: str, forbidden: frozenset[int]) -> list[int]:
        """Encode text whose merges would build forbidden tokens: cut it inside each of them, then piece by piece."""
        encoding = self._library.encode(text, add_special_tokens=False)
        hits = [span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id in forbidden]
        if not hits:
            return list(encoding.ids)
        if len(text) < 2:
            raise invalid("A special token is a single character of ordinary text.", f"{text!r}.")
        cuts = {0, len(text)}
        for start, end in hits:
            cuts.update({start + 1} if end - start > 1 else {start, end})
        edges = sorted(cuts)
        pieces = (text[start:end] for start, end in pairwise(edges))
        return [token_id for piece in pieces for token_id in self._encode_apart(piece, forbidden)]


def reraise_unless_library(error: BaseException) -> None:
    """Raise errors again that do not come from the tokenizer library: Ctrl-C, exit, exhausted memory."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
