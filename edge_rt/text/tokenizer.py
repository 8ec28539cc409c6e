"""Text to token ids and back: BPE through the ``tokenizers`` library, with additional limits.

A ``tokenizer.json`` is untrusted input. Before the library sees it, :mod:`edge_rt.text.tokenizer_check` bounds its size
and structure, allows only the parts that BPE over bytes or with byte fallback needs, and refuses regular expressions
that can backtrack exponentially. Whatever the library still raises, including panics (which are not an ``Exception``),
becomes :class:`InvalidTokenizer`.

The library only cuts and merges. Added tokens are found by :mod:`edge_rt.text.added_tokens`, a space before a text is
written by :class:`edge_rt.text.tokenizer_steps.Prefix`, and decoding is in :mod:`edge_rt.text.token_bytes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import tokenizers

from edge_rt.errors import InvalidTokenizer
from edge_rt.system.byte_size import show_size
from edge_rt.system.machine import return_free_memory
from edge_rt.text.added_tokens import AddedTokens
from edge_rt.text.piece_encoder import PieceEncoder, reraise_unless_library
from edge_rt.text.token_bytes import IncrementalDecoder, TokenBytes, fallback_bytes, spelled_bytes
from edge_rt.text.tokenizer_check import (
    FETCH_AGAIN,
    MAX_FILE_BYTES,
    MAX_VOCABULARY,
    invalid,
    read_file,
)
from edge_rt.text.tokenizer_reading import KeptReadings, Reading, read_document
from edge_rt.text.tokenizer_steps import Steps, library_steps

_COUNTED_CHARACTERS: Final = 1 << 16  # characters of a text whose bytes are counted at once


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


class Rendered(Protocol):
    """A rendered prompt: see :class:`edge_rt.text.template_text.RenderedPrompt`."""

    def spans(self) -> list[tuple[str, bool]]:
        """Return (text, whether the template wrote it) in order."""


class Tokenizer:
    """A BPE tokenizer over bytes or with byte fallback; immutable, usable from several threads.

    Created by :meth:`from_file` or :meth:`from_text`.

    Attributes:
        vocab_size: ids run from 0 to ``vocab_size - 1``; not each of them need be a token.
        special_ids: ids of tokens that are not text, such as turn markers and end of text.
        special_tokens: their texts, by id.
        mark_ids: ids of these and of other added tokens that mark something, such as ``<think>``.
        bos_token_id: token that starts a text, or None.
        eos_token_ids: tokens that end an answer.
        add_bos: whether :meth:`encode_prompt` starts with ``bos_token_id``.
        warnings: what the file has and edge-rt reads in another way, one sentence each.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        reading: Reading,
        facts: TokenizerFacts | None,
        rows: int | None,
    ) -> None:
        self._library = library
        checked = reading.checked
        steps = checked.steps
        self.vocab_size: int = min(checked.size, rows or MAX_VOCABULARY)
        self.warnings = checked.warnings
        # A file may have tokens, of images for example, that a model of text has no row for.
        found = (token for token in checked.added if token.token_id < self.vocab_size)
        added = sorted(found, key=lambda token: token.token_id)
        self._added = AddedTokens(added)
        self._plain_added = frozenset(token.token_id for token in added if not token.special)
        self._text_added = frozenset(token.token_id for token in added if token.is_text)
        self._marks = frozenset(token.token_id for token in added) - self._text_added
        special = {token.token_id: token.text for token in added if token.special}
        self.special_ids: frozenset[int] = frozenset(special)
        self.mark_ids = self._marks | self.special_ids
        self.special_tokens: tuple[str, ...] = tuple(special.values())
        spelled = spelled_bytes if steps.is_byte_level else fallback_bytes
        texts = {token.token_id: token.text.encode("utf-8", "surrogatepass") for token in added}
        self._bytes = TokenBytes(library.id_to_token, texts, max(rows or 0, self.vocab_size), spelled)
        self._steps = steps
        self._longest, self._missing = reading.longest, reading.missing
        self._pieces = PieceEncoder(library, reading.places)
        self.bos_token_id = facts.bos_token_id if facts else None
        self.eos_token_ids = facts.eos_token_ids if facts else ()
        self.add_bos = facts is not None and facts.add_bos and facts.bos_token_id is not None

    @classmethod
    def from_file(
        cls,
        path: Path,
        *,
        info: TokenizerFacts | None = None,
        embedding_rows: int | None = None,
        kept: KeptReadings | None = None,
    ) -> Tokenizer:
        """Load ``tokenizer.json``.

        Args:
            path: the file, at most 128 MiB.
            info: the manifest's information; without it there is no BOS and no end token.
            embedding_rows: rows of the model's embedding matrix, the bound of every id.
            kept: readings of files that were checked before; None: the file is parsed and checked.

        Raises:
            StorageError: the file cannot be read.
            InvalidTokenizer: the file is malformed or exceeds a limit.
            UnsupportedModel: it is neither BPE over bytes nor BPE with byte fallback.
        """
        data = read_file(path)
        tokenizer = cls._load(data, path.name, info, embedding_rows, kept)
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
            raise InvalidTokenizer(
                "tokenizer.json is too large.", f"The limit is {show_size(MAX_FILE_BYTES)}.", FETCH_AGAIN
            )
        return cls._load(data, "tokenizer.json", info, embedding_rows, None)

    @classmethod
    def _load(
        cls, data: bytes, name: str, facts: TokenizerFacts | None, rows: int | None, kept: KeptReadings | None
    ) -> Tokenizer:
        read = read_document if kept is None else kept.read
        reading = read(data, name, rows if rows is not None else MAX_VOCABULARY)
        checked = reading.checked
        try:
            library = None if reading.parts is None else reading.parts.open()
            library = library or tokenizers.Tokenizer.from_buffer(data)
            if checked.steps.is_changed:
                _set_steps(library, checked.steps)
        except BaseException as error:  # panics of the library are not an Exception
            reraise_unless_library(error)
            raise InvalidTokenizer(f"{name} is not accepted.", f"{str(error)[:200]}.", FETCH_AGAIN) from error
        # The library assigns ids of added tokens itself, and only logs where the file gives other ids.
        for token in checked.added:
            if (given := library.token_to_id(token.text)) != token.token_id:
                raise invalid(
                    "The tokenizers library gives an added token another id than the file.",
                    f"{token.text[:40]!r} is {token.token_id} in the file and {given} in the library, which numbers"
                    " added tokens on from the number of tokens.",
                    "Correct tokenizer.json: give added tokens the ids that follow each other behind the vocabulary.",
                )
        count = min(checked.size, rows or MAX_VOCABULARY)
        for token_id in (*facts.eos_token_ids, facts.bos_token_id) if facts else ():
            if token_id is not None and not 0 <= token_id < count:
                raise invalid("The BOS or end token does not exist.", f"Id {token_id}, {count} tokens.")
        library.no_padding()
        library.no_truncation()
        _find_no_added_tokens(library)
        return cls(library, reading, facts, rows)

    def encode_text(self, text: str) -> list[int]:
        """Encode text as text: what looks like a special token becomes ordinary tokens.

        Added tokens that are not special are found. :meth:`encode_spans` tells whose text it is.

        Raises:
            InputError: the text has lone surrogates, which no encoding can express.
            InvalidTokenizer: the tokenizer's own rules failed on this text.
        """
        return self._pieces.encode(self._split([(text, False)], self._plain_added), self.special_ids, len(text))

    def encode_spans(self, spans: Sequence[tuple[str, bool]], *, continues: bool = False) -> list[int]:
        """Encode a rendered prompt in which the template's text is kept apart from everybody else's.

        The spans are one text: where no added token lies between two of them, they are cut and merged together. So the
        ids are those of the whole text, unless the text of an added token is found in somebody's text, or begins in
        one span and ends in another: such a text becomes ordinary tokens, also if merges would lead to that token.

        Added tokens that are not special and only white space, or a single character, are text: they are found in
        everybody's text, and across spans. White space next to a token that takes it in (``lstrip``, ``rstrip``) is
        taken in, whoever wrote it.

        Args:
            spans: (text, whether the template wrote it) in order. In the template's text every added token is found:
                special ones, and others such as ``<think>``. In the rest none is.
            continues: the text continues one that was encoded before, so nothing is put before it.

        Raises:
            InputError, InvalidTokenizer: as :meth:`encode_text`.
        """
        parts = self._split(spans, self._text_added, is_start=not continues, continues=continues)
        return self._pieces.encode(parts, self._marks, _length(spans))

    def encode_spans_within(
        self, spans: Sequence[tuple[str, bool]], most: int, *, continues: bool = False
    ) -> list[int] | int:
        """Encode as :meth:`encode_spans`, but no further than needed to know that there are more than ``most`` tokens.

        Memory is bounded by that, not by the length of the texts.

        Returns:
            The ids; or, if there are more than ``most``, a lower bound of their number.
        """
        parts = self._split(spans, self._text_added, is_start=not continues, continues=continues)
        return self._pieces.encode_within(parts, self._marks, most, _length(spans))

    def encode_within(self, text: str, most: int) -> list[int] | int:
        """Encode a text as :meth:`encode_text`, but no further than needed to know that there are too many tokens.

        Memory is bounded by that, not by the length of the text.

        Args:
            text: the text.
            most: most tokens allowed.

        Returns:
            The ids; or, if there are more than ``most``, a lower bound of their number.

        Raises:
            InputError, InvalidTokenizer: as :meth:`encode_text`.
        """
        parts = self._split([(text, False)], self._plain_added)
        return self._pieces.encode_within(parts, self.special_ids, most, len(text))

    def estimate(self, text: str) -> int:
        """Return about how many tokens a text has, in milliseconds and little memory however long it is."""
        return self._pieces.estimate(text)

    def longest_stretch(self, text: str) -> int:
        """Return the UTF-8 bytes of the longest part of a text that has to be encoded at once."""
        return self._pieces.longest_stretch(text)

    def _split(
        self, spans: Sequence[tuple[str, bool]], free: frozenset[int], *, is_start: bool = True, continues: bool = False
    ) -> Iterator[int | str]:
        """Yield the added tokens of a text, and the texts between them with their prefixes."""
        for part in self._added.split(spans, free):
            if isinstance(part, int) or continues:
                yield part
            else:
                yield self._steps.prefix.before(part, is_start=is_start)
            is_start = continues = False

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a plain prompt (no chat template): :meth:`encode_text` after the BOS token if the model wants one."""
        ids = self.encode_text(text)
        return [self.bos_token_id, *ids] if self.add_bos and self.bos_token_id is not None else ids

    def encode_rendered(self, prompt: Rendered, *, continues: bool = False) -> list[int]:
        """Encode a rendered chat: added tokens that the template wrote are real, everything else is text.

        Args:
            prompt: :class:`edge_rt.text.template_text.RenderedPrompt`, or its ``suffix``.
            continues: it is a suffix, which continues a text that was encoded before.
        """
        return self.encode_spans(prompt.spans(), continues=continues)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, shown: frozenset[int] = frozenset()) -> str:
        """Return the text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        A space that encoding put before the text is left out.

        Args:
            ids: token ids.
            skip_special: leave out special tokens.
            shown: ids of special tokens that are shown as text all the same, such as markers of channels.

        Raises:
            ConfigError: an id is not a row of the model.
        """
        skipped = self.special_ids - shown if skip_special else frozenset()
        data = b"".join(self._bytes[token_id] for token_id in ids if token_id not in skipped)
        return (data.removeprefix(b" ") if self._steps.drops_space else data).decode("utf-8", "replace")

    def decode_stream(
        self, *, skip_special: bool = True, shown: frozenset[int] = frozenset(), keeps_space: bool = False
    ) -> IncrementalDecoder:
        """Return a decoder that takes one token at a time and holds back incomplete characters.

        Args:
            skip_special: leave out special tokens.
            shown: ids of special tokens that are shown as text all the same.
            keeps_space: keep a space at the very start, for text that continues another one.
        """
        skipped = self.special_ids - shown if skip_special else frozenset()
        drops_space = self._steps.drops_space and not keeps_space
        return IncrementalDecoder(self.token_bytes, skipped, drops_space=drops_space)

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
        total = 0
        for start in range(0, len(text), _COUNTED_CHARACTERS):
            part = text[start : start + _COUNTED_CHARACTERS]
            # Tokens may take in any amount of white space around them.
            part = "".join(part.split()) if self._added.strips else part
            total += len(part.encode("utf-8", "surrogatepass").translate(None, self._missing))
        return total // self._longest


def _set_steps(library: tokenizers.Tokenizer, steps: Steps) -> None:
    """Give the library the steps without those that edge-rt does itself."""
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    other = tokenizers.Tokenizer.from_str(json.dumps(empty | library_steps(steps)))
    library.normalizer = other.normalizer
    library.pre_tokenizer = other.pre_tokenizer


def _find_no_added_tokens(library: tokenizers.Tokenizer) -> None:
    """Let the library treat every added token as text: it does so for special ones, so all are made special."""
    tokens = library.get_added_tokens_decoder().values()
    for token in tokens:
        token.special = True
    library.add_special_tokens(list(tokens))
    library.encode_special_tokens = True


def _length(spans: Iterable[tuple[str, bool]]) -> int:
    return sum(len(text) for text, _ in spans)
