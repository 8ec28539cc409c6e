"""Text to token ids and back: byte-level BPE through the ``tokenizers`` library, with additional limits.

A ``tokenizer.json`` is untrusted input. Before the library sees it, :mod:`edge_rt.text.tokenizer_check` bounds its size
and structure, allows only the parts that byte-level BPE needs, and refuses regular expressions that can backtrack
exponentially. Whatever the library still raises, including panics (which are not an ``Exception``), becomes
:class:`InvalidTokenizer`.

Decoding does not use the library: see :mod:`edge_rt.text.token_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

import tokenizers

from edge_rt.errors import InputError, InvalidTokenizer, StorageError
from edge_rt.system.machine import return_free_memory
from edge_rt.text.token_bytes import BYTE_OF, IncrementalDecoder, TokenBytes
from edge_rt.text.tokenizer_check import FETCH_AGAIN, MAX_FILE_BYTES, MAX_VOCABULARY, check_document, invalid, parse
from edge_rt.text.tokenizer_cuts import PIECE_CHARACTERS, cut, cut_pattern

# Bytes that normalisation can turn into one: at most 4 are known, 8 leaves a margin.
_MAX_COMPOSITION: Final = 8
_COUNTED_CHARACTERS: Final = 1 << 16  # characters of a text whose bytes are counted at once
# Tokens that a cut in the wrong place may add.
_SPLIT_TOKENS: Final = 8


class TokenizerFacts(Protocol):
    """The manifest's information about a package's tokenizer."""

    @property
    def bos_token_id(self) -> int | None:
        """Token that starts a text."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt starts with the BOS token."""


class Pieces(Protocol):
    """A rendered prompt: see :class:`edge_rt.text.template.RenderedPrompt`."""

    def pieces(self) -> list[tuple[str, bool]]:
        """Return (text, is a special token) pairs in order."""


class Tokenizer:
    """A byte-level BPE tokenizer; immutable, usable from several threads.

    Created by :meth:`from_file` or :meth:`from_text`.

    Attributes:
        vocab_size: number of tokens; ids run from 0 to ``vocab_size - 1``.
        special_ids: ids of tokens that are not text, such as turn markers and end of text.
        special_tokens: their texts, by id.
        bos_token_id: token that starts a text, or None.
        eos_token_ids: tokens that end an answer.
        add_bos: whether :meth:`encode_prompt` starts with ``bos_token_id``.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        document: Mapping[str, object],
        facts: TokenizerFacts | None,
        rows: int | None,
    ) -> None:
        self._library = library
        added = library.get_added_tokens_decoder()
        self._added_bytes = {token_id: token.content.encode() for token_id, token in added.items()}
        special = {token_id: token.content for token_id, token in sorted(added.items()) if token.special}
        self.special_ids: frozenset[int] = frozenset(special)
        self.special_tokens: tuple[str, ...] = tuple(special.values())
        self._special_by_text = {text: token_id for token_id, text in special.items()}
        self.vocab_size: int = library.get_vocab_size(with_added_tokens=True)
        self._bytes = TokenBytes(library.id_to_token, self._added_bytes, max(rows or 0, self.vocab_size))
        self._normalizes = document.get("normalizer") is not None
        self._bound: tuple[int, bytes] | None = None
        self._cuts = cut_pattern(document)
        self.bos_token_id = facts.bos_token_id if facts else None
        self.eos_token_ids = facts.eos_token_ids if facts else ()
        self.add_bos = facts is not None and facts.add_bos and facts.bos_token_id is not None

    @classmethod
    def from_file(
        cls, path: Path, *, info: TokenizerFacts | None = None, embedding_rows: int | None = None
    ) -> Tokenizer:
        """Load ``tokenizer.json``.

        Args:
            path: the file, at most 128 MiB.
            info: the manifest's information; without it there is no BOS and no end token.
            embedding_rows: rows of the model's embedding matrix, the bound of every id.

        Raises:
            StorageError: the file cannot be read.
            InvalidTokenizer: the file is malformed or exceeds a limit.
            UnsupportedModel: it is not byte-level BPE.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise StorageError(
                f"{path.name} cannot be read.", f"{error.strerror or error}.", "Check the path and its permissions."
            ) from error
        if len(data) > MAX_FILE_BYTES:
            raise InvalidTokenizer(f"{path.name} is too large.", f"More than {MAX_FILE_BYTES} bytes.", FETCH_AGAIN)
        tokenizer = cls._load(data, path.name, info, embedding_rows)
        # Reading took three times the memory of the result: 20 MiB for 49,000 tokens, 80 MiB for 151,000.
        del data
        return_free_memory()
        return tokenizer

    @classmethod
    def from_text(
        cls, text: str, *, info: TokenizerFacts | None = None, embedding_rows: int | None = None
    ) -> Tokenizer:
        """Load the contents of a ``tokenizer.json``; arguments and errors as in :meth:`from_file`."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_FILE_BYTES:
            raise InvalidTokenizer("tokenizer.json is too large.", f"More than {MAX_FILE_BYTES} bytes.", FETCH_AGAIN)
        return cls._load(data, "tokenizer.json", info, embedding_rows)

    @classmethod
    def _load(cls, data: bytes, name: str, facts: TokenizerFacts | None, rows: int | None) -> Tokenizer:
        document = parse(data, name)
        ids = check_document(document, rows if rows is not None else MAX_VOCABULARY)
        try:
            library = tokenizers.Tokenizer.from_str(data.decode())
        except BaseException as error:  # panics of the library are not an Exception
            _reraise_unless_library(error)
            raise InvalidTokenizer(f"{name} is not accepted.", f"{str(error)[:200]}.", FETCH_AGAIN) from error
        # The library assigns ids of added tokens itself, and only logs where the file gives other ids.
        for text, expected in ids.items():
            if library.token_to_id(text) != expected:
                raise invalid("An added token has an impossible id.", f"{text[:40]!r} says {expected}.")
        count = library.get_vocab_size(with_added_tokens=True)
        for token_id in (*facts.eos_token_ids, facts.bos_token_id) if facts else ():
            if token_id is not None and not 0 <= token_id < count:
                raise invalid("The BOS or end token does not exist.", f"Id {token_id}, {count} tokens.")
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True
        return cls(library, document, facts, rows)

    def encode_text(self, text: str) -> list[int]:
        """Encode text as text: what looks like a special token becomes ordinary tokens.

        Raises:
            InputError: the text has lone surrogates, which no encoding can express.
            InvalidTokenizer: the tokenizer's own rules failed on this text.
        """
        if len(text) <= PIECE_CHARACTERS:
            return self._encode_piece(text)
        # The library takes hundreds of bytes per character of its input.
        ids = [token_id for piece in cut(text, self._cuts) for token_id in self._encode_piece(piece)]
        return_free_memory()
        return ids

    def encode_within(self, parts: Iterable[tuple[str, bool]], most: int) -> list[int] | int:
        """Encode texts and special tokens, but no further than needed to know that there are too many tokens.

        Memory is bounded by that, not by the length of the texts.

        Args:
            parts: (text, is a special token) in order, as of ``RenderedPrompt.pieces``.
            most: most tokens allowed.

        Returns:
            The ids that :meth:`encode_rendered` returns; or, if there are more than ``most``, a lower bound of their
            number.

        Raises:
            InputError, InvalidTokenizer: as :meth:`encode_text` and :meth:`encode_rendered`.
        """
        ids: list[int] = []
        pieces = [(text, is_special) for text, is_special in parts]
        is_long = sum(len(text) for text, _ in pieces) > PIECE_CHARACTERS
        try:
            for text, is_special in pieces:
                if is_special:
                    ids.append(self._special_id(text))
                for piece in () if is_special else cut(text, self._cuts):
                    least = self._least_of_stretch(piece, most - len(ids))
                    if len(ids) + least > most:
                        return len(ids) + least
                    ids.extend(self._encode_piece(piece))
                    if len(ids) > most:
                        return len(ids)
            return ids if len(ids) <= most else len(ids)
        finally:
            if is_long:
                return_free_memory()

    def longest_stretch(self, text: str) -> int:
        """Return the UTF-8 bytes of the longest part of a text that has to be encoded at once."""
        return max(len(piece.encode("utf-8", "surrogatepass")) for piece in cut(text, self._cuts))

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

    def _encode_piece(self, text: str) -> list[int]:
        ids = self._encode(text)
        if self.special_ids.isdisjoint(ids):
            return ids
        return self._encode_apart(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a plain prompt (no chat template): :meth:`encode_text` after the BOS token if the model wants one."""
        ids = self.encode_text(text)
        return [self.bos_token_id, *ids] if self.add_bos and self.bos_token_id is not None else ids

    def encode_rendered(self, prompt: Pieces) -> list[int]:
        """Encode a rendered chat: the template's special tokens are real, everything else is text.

        Args:
            prompt: :class:`edge_rt.text.template.RenderedPrompt`, or its ``suffix``.

        Raises:
            InvalidTokenizer: the prompt was rendered for special tokens that this tokenizer does not have.
        """
        ids: list[int] = []
        for text, is_special in prompt.pieces():
            if not is_special:
                ids.extend(self.encode_text(text))
                continue
            ids.append(self._special_id(text))
        return ids

    def _special_id(self, text: str) -> int:
        token_id = self._special_by_text.get(text)
        if token_id is None:
            raise invalid("The chat template uses a special token that does not exist.", f"{text[:40]!r}.")
        return token_id

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ConfigError: an id is not a row of the model.
        """
        skipped = self.special_ids if skip_special else frozenset()
        return b"".join(self._bytes[token_id] for token_id in ids if token_id not in skipped).decode("utf-8", "replace")

    def decode_stream(self, *, skip_special: bool = True) -> IncrementalDecoder:
        """Return a decoder that takes one token at a time and holds back incomplete characters."""
        return IncrementalDecoder(self.token_bytes, self.special_ids if skip_special else frozenset())

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token in the vocabulary's own spelling, or None."""
        return self._library.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token, or None for a row without one."""
        self._bytes.check(token_id)
        return self._library.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of text that a token stands for; empty for rows without a token.

        Raises:
            ConfigError: the id is not a row of the model.
        """
        return self._bytes[token_id]

    def min_tokens(self, text: str) -> int:
        """Return a lower bound of ``len(encode_text(text))`` within milliseconds, to refuse huge prompts at once."""
        if self._bound is None:
            self._bound = self._find_bound()
            return_free_memory()
        longest, missing = self._bound
        starts = range(0, len(text), _COUNTED_CHARACTERS)
        parts = (text[start : start + _COUNTED_CHARACTERS].encode("utf-8", "surrogatepass") for start in starts)
        return sum(len(part.translate(None, missing)) for part in parts) // longest

    def _find_bound(self) -> tuple[int, bytes]:
        """Return the largest number of bytes of a token, and the byte values that no token contains."""
        vocabulary = self._library.get_vocab(with_added_tokens=False)
        lengths = [*map(len, vocabulary), *map(len, self._added_bytes.values())]
        # Bytes without a token vanish in encoding, so they do not count.
        missing = bytes(byte for character, byte in BYTE_OF.items() if character not in vocabulary)
        # Composing characters (Unicode NFC) shortens text as well.
        return max(lengths) * (_MAX_COMPOSITION if self._normalizes else 1), missing

    def _encode(self, text: str) -> list[int]:
        try:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        except BaseException as error:  # panics of the library are not an Exception
            _reraise_unless_library(error)
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(
                    "The text has a lone surrogate, which is not a character.",
                    "Code points U+D800 to U+DFFF occur in pairs in UTF-16 only.",
                    'Clean it first, for example with text.encode("utf-8", "replace").decode().',
                ) from error
            raise InvalidTokenizer(
                "The tokenizer failed on this text.", f"{len(text)} characters: {str(error)[:200]}.", FETCH_AGAIN
            ) from error

    def _encode_apart(self, text: str) -> list[int]:
        """Encode text whose merges would build special tokens: cut it inside each of them, then piece by piece."""
        encoding = self._library.encode(text, add_special_tokens=False)
        hits = [
            span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id in self.special_ids
        ]
        if not hits:
            return list(encoding.ids)
        if len(text) < 2:
            raise invalid("A special token is a single character of ordinary text.", f"{text!r}.")
        cuts = {0, len(text)}
        for start, end in hits:
            cuts.update({start + 1} if end - start > 1 else {start, end})
        edges = sorted(cuts)
        pieces = (text[start:end] for start, end in pairwise(edges))
        return [token_id for piece in pieces for token_id in self._encode_apart(piece)]


def _reraise_unless_library(error: BaseException) -> None:
    """Raise errors again that do not come from the tokenizer library: Ctrl-C, exit, exhausted memory."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
