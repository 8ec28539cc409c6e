"""Text to token ids and back: byte-level BPE through the ``tokenizers`` library, behind limits of our own.

A ``tokenizer.json`` is input from outside. Before the library sees it, :func:`_check_document` bounds its size and
structure, allows only the parts that byte-level BPE needs, and refuses regular expressions that can backtrack without
end. Whatever the library still raises, panics included (they are no ``Exception``), becomes :class:`InvalidTokenizer`.

Decoding does not use the library: a token is a fixed run of bytes, so text is those bytes decoded as UTF-8, in one go
or token by token, with the same result.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn, Protocol

import tokenizers

from edge_rt.errors import ConfigError, InputError, InvalidTokenizer, StorageError, UnsupportedModel

MAX_FILE_BYTES: Final = 128 * 1024 * 1024
MAX_VOCABULARY: Final = 1_000_000
MAX_TOKEN_BYTES: Final = 4096
MAX_ADDED_TOKENS: Final = 10_000
# A vocabulary of 10^6 has 10^6 merges (one array each) and four million commas; Python needs about 60 bytes for each.
_MAX_JSON_CONTAINERS: Final = 3_000_000
_MAX_JSON_COMMAS: Final = 8_000_000
_MAX_PATTERN_CHARS: Final = 4096
_MAX_STEP_DEPTH: Final = 8
# Bytes that normalisation can turn into one: at most 4 are known, 8 leaves room.
_MAX_COMPOSITION: Final = 8

_NORMALIZERS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_PRE_TOKENIZERS: Final = frozenset({"ByteLevel", "Digits", "Punctuation", "Split"})
_FETCH_AGAIN: Final = "Fetch the model again, from a trusted source."


class TokenizerFacts(Protocol):
    """What a package's manifest says about its tokenizer."""

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
    """A rendered prompt: see :class:`edge_rt.template.RenderedPrompt`."""

    def pieces(self) -> list[tuple[str, bool]]:
        """Return (text, is a special token) pairs in order."""


class Tokenizer:
    """A byte-level BPE tokenizer; immutable, usable from several threads.

    Made by :meth:`from_file` or :meth:`from_text`.

    Attributes:
        vocab_size: number of tokens; ids run from 0 to ``vocab_size - 1``.
        special_ids: ids that stand for no text: turn markers, end of text and the like.
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
        self._rows = rows if rows is not None else self.vocab_size
        self._bytes: dict[int, bytes] = {}
        self._normalizes = document.get("normalizer") is not None
        self._bound: tuple[int, bytes] | None = None
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
            info: the manifest's facts; without them there is no BOS and no end token.
            embedding_rows: rows of the model's embedding matrix, the bound of every id.

        Raises:
            StorageError: the file cannot be read.
            InvalidTokenizer: the file is malformed or exceeds a limit.
            UnsupportedModel: it is no byte-level BPE.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise StorageError(
                f"{path.name} cannot be read.", f"{error.strerror or error}.", "Check the path and its permissions."
            ) from error
        if len(data) > MAX_FILE_BYTES:
            raise InvalidTokenizer(f"{path.name} is too large.", f"More than {MAX_FILE_BYTES} bytes.", _FETCH_AGAIN)
        return cls._load(data, path.name, info, embedding_rows)

    @classmethod
    def from_text(
        cls, text: str, *, info: TokenizerFacts | None = None, embedding_rows: int | None = None
    ) -> Tokenizer:
        """Load the contents of a ``tokenizer.json``; arguments and errors as in :meth:`from_file`."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_FILE_BYTES:
            raise InvalidTokenizer("tokenizer.json is too large.", f"More than {MAX_FILE_BYTES} bytes.", _FETCH_AGAIN)
        return cls._load(data, "tokenizer.json", info, embedding_rows)

    @classmethod
    def _load(cls, data: bytes, name: str, facts: TokenizerFacts | None, rows: int | None) -> Tokenizer:
        document = _parse(data, name)
        ids = _check_document(document, rows if rows is not None else MAX_VOCABULARY)
        try:
            library = tokenizers.Tokenizer.from_str(data.decode())
        except BaseException as error:  # panics of the library are no Exception
            _reraise_unless_library(error)
            raise InvalidTokenizer(f"{name} is not accepted.", f"{str(error)[:200]}.", _FETCH_AGAIN) from error
        # The library numbers added tokens by itself and only logs where the file says something else.
        for text, expected in ids.items():
            if library.token_to_id(text) != expected:
                raise _invalid("An added token has an impossible id.", f"{text[:40]!r} says {expected}.")
        count = library.get_vocab_size(with_added_tokens=True)
        for token_id in (*facts.eos_token_ids, facts.bos_token_id) if facts else ():
            if token_id is not None and not 0 <= token_id < count:
                raise _invalid("The BOS or end token does not exist.", f"Id {token_id}, {count} tokens.")
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
            prompt: :class:`edge_rt.template.RenderedPrompt`, or its ``suffix``.

        Raises:
            InvalidTokenizer: the prompt was rendered for special tokens that this tokenizer does not have.
        """
        ids: list[int] = []
        for text, is_special in prompt.pieces():
            if not is_special:
                ids.extend(self.encode_text(text))
                continue
            token_id = self._special_by_text.get(text)
            if token_id is None:
                raise _invalid("The chat template uses a special token that does not exist.", f"{text[:40]!r}.")
            ids.append(token_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of ``ids``; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ConfigError: an id is not a row of the model.
        """
        skipped = self.special_ids if skip_special else frozenset()
        return b"".join(self._token_bytes(token_id) for token_id in ids if token_id not in skipped).decode(
            "utf-8", "replace"
        )

    def decode_stream(self, *, skip_special: bool = True) -> IncrementalDecoder:
        """Return a decoder that takes one token at a time and holds back incomplete characters."""
        return IncrementalDecoder(self, skip_special=skip_special)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token in the vocabulary's own spelling, or None."""
        return self._library.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token, or None for a row without one."""
        self._check_id(token_id)
        return self._library.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of text that a token stands for; empty for rows without a token.

        Raises:
            ConfigError: the id is not a row of the model.
        """
        return self._token_bytes(token_id)

    def min_tokens(self, text: str) -> int:
        """Return a lower bound of ``len(encode_text(text))`` within milliseconds, to refuse huge prompts at once."""
        if self._bound is None:
            vocabulary = self._library.get_vocab(with_added_tokens=False)
            lengths = [*map(len, vocabulary), *map(len, self._added_bytes.values())]
            # Bytes that have no token vanish in encoding, so they cannot count.
            missing = bytes(byte for character, byte in _BYTE_OF.items() if character not in vocabulary)
            # Composing characters (Unicode NFC) shortens text too.
            self._bound = (max(lengths) * (_MAX_COMPOSITION if self._normalizes else 1), missing)
        longest, missing = self._bound
        return len(text.encode("utf-8", "surrogatepass").translate(None, missing)) // longest

    def _encode(self, text: str) -> list[int]:
        try:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        except BaseException as error:  # panics of the library are no Exception
            _reraise_unless_library(error)
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(
                    "The text has a lone surrogate, which is no character.",
                    "Code points U+D800 to U+DFFF occur in pairs in UTF-16 only.",
                    'Clean it first, for example with text.encode("utf-8", "replace").decode().',
                ) from error
            raise InvalidTokenizer(
                "The tokenizer failed on this text.", f"{len(text)} characters: {str(error)[:200]}.", _FETCH_AGAIN
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
            raise _invalid("A special token is a single character of ordinary text.", f"{text!r}.")
        cuts = {0, len(text)}
        for start, end in hits:
            cuts.update({start + 1} if end - start > 1 else {start, end})
        edges = sorted(cuts)
        pieces = (text[start:end] for start, end in pairwise(edges))
        return [token_id for piece in pieces for token_id in self._encode_apart(piece)]

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < max(self._rows, self.vocab_size):
            raise ConfigError(
                "There is no such token.",
                f"Id {token_id}, ids are 0 to {max(self._rows, self.vocab_size) - 1}.",
                "Pass ids of this model's tokenizer.",
            )

    def _token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            known = self._added_bytes.get(token_id)
            if known is None:
                token = self.id_to_token(token_id)
                known = b"" if token is None else _spelled_bytes(token)
            self._bytes[token_id] = known
        return known


class IncrementalDecoder:
    """Turns tokens into text one by one.

    The pushes and the final :meth:`flush`, joined, are exactly ``tokenizer.decode(all ids)``. A character whose bytes
    are spread over several tokens appears with its last one; only bytes that no continuation can mend become U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is complete now (possibly empty)."""
        if token_id in self._skipped:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """End the text: return U+FFFD for an unfinished character, else nothing; the decoder starts afresh."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _byte_spelling() -> dict[str, int]:
    """Return GPT-2's alphabet: the printable character that stands for each byte in a vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF: Final = _byte_spelling()


def _spelled_bytes(token: str) -> bytes:
    """Return the bytes of a vocabulary entry; entries outside GPT-2's alphabet are plain text."""
    values = [_BYTE_OF.get(character) for character in token]
    return bytes(value for value in values if value is not None) if None not in values else token.encode()


def _invalid(what: str, numbers: str) -> InvalidTokenizer:
    return InvalidTokenizer(what, numbers, _FETCH_AGAIN)


def _reraise_unless_library(error: BaseException) -> None:
    """Let through what did not come from the tokenizer library: Ctrl-C, exit, exhausted memory."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _parse(data: bytes, name: str) -> dict[str, object]:
    # Counting bytes costs milliseconds and bounds what the parser below can allocate.
    for what, found, limit in (
        ("arrays and objects", data.count(b"{") + data.count(b"["), _MAX_JSON_CONTAINERS),
        ("values", data.count(b","), _MAX_JSON_COMMAS),
        ("added tokens", data.count(b'"content"'), MAX_ADDED_TOKENS + 1000),
    ):
        if found > limit:
            raise _invalid(f"{name} has too many {what}.", f"About {found} of at most {limit}.")
    try:
        document = json.loads(data.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{name} is not valid JSON.", f"{str(error)[:200]}.") from error
    if not isinstance(document, dict):
        raise _invalid(f"{name} is not a tokenizer.", f"It holds a {type(document).__name__}, not an object.")
    return document


def _check_document(document: Mapping[str, object], rows: int) -> dict[str, int]:
    """Check everything the library would trust; return the added tokens with their ids."""
    model = _object(document, "model")
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise UnsupportedModel(
            f"The tokenizer model {str(kind)[:40]!r} is not supported.",
            "Supported: 'BPE' over bytes.",
            "Use a model with a byte-level BPE tokenizer.",
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise UnsupportedModel(
                f"The tokenizer uses '{key}', which is not supported.", f"It is {str(model[key])[:40]!r}.", _FETCH_AGAIN
            )
    vocabulary = _check_vocabulary(_object(model, "vocab"))
    _check_merges(model.get("merges"), vocabulary)
    added = _check_added(document.get("added_tokens", []), vocabulary)
    ids = set(vocabulary.values()) | set(added.values())
    if len(ids) != max(ids) + 1 or max(ids) >= rows:
        raise _invalid(
            "The token ids have gaps or exceed the embedding matrix.",
            f"{len(ids)} different ids up to {max(ids)}, {rows} rows.",
        )
    _check_steps(document.get("normalizer"), "normalizers", _NORMALIZERS)
    steps = _check_steps(document.get("pre_tokenizer"), "pretokenizers", _PRE_TOKENIZERS)
    decoder = _check_steps(document.get("decoder"), "decoders", frozenset({"ByteLevel"}))
    if "ByteLevel" not in steps or "ByteLevel" not in decoder:
        raise UnsupportedModel(
            "The tokenizer does not work on bytes, which is not supported.",
            f"Pre-tokenizer {steps}, decoder {decoder}.",
            "Use a model with a byte-level BPE tokenizer.",
        )
    return added


def _object(parent: Mapping[str, object], key: str) -> dict[str, object]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise _invalid(f"The tokenizer's '{key}' is no object.", f"It is of type {type(value).__name__}.")
    return value


def _check_token(text: object, token_id: object) -> tuple[str, int]:
    if not isinstance(text, str) or not text:
        raise _invalid("A token is empty or no text.", f"Id {str(token_id)[:20]}.")
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < MAX_VOCABULARY:
        raise _invalid("A token id is out of range.", f"{text[:40]!r}: {str(token_id)[:20]}, limit {MAX_VOCABULARY}.")
    if len(text) > MAX_TOKEN_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TOKEN_BYTES:
        raise _invalid("A token is too long.", f"Id {token_id}: more than {MAX_TOKEN_BYTES} bytes.")
    return text, token_id


def _check_vocabulary(vocabulary: Mapping[str, object]) -> dict[str, int]:
    if not 0 < len(vocabulary) <= MAX_VOCABULARY:
        raise _invalid("The vocabulary is empty or too large.", f"{len(vocabulary)} tokens, limit {MAX_VOCABULARY}.")
    result = dict(_check_token(text, token_id) for text, token_id in vocabulary.items())
    if len(set(result.values())) != len(result):
        raise _invalid("Two tokens share one id.", f"{len(result)} tokens, {len(set(result.values()))} ids.")
    return result


def _check_merges(merges: object, vocabulary: Mapping[str, int]) -> None:
    if not isinstance(merges, list):
        raise _invalid("The tokenizer's 'merges' are no array.", f"They are of type {type(merges).__name__}.")
    for index, merge in enumerate(merges):
        parts: Sequence[object] = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2:
            raise _invalid("A merge is malformed.", f"Merge {index} is {str(merge)[:60]!r}.")
        left, right = parts
        if not (isinstance(left, str) and isinstance(right, str) and left in vocabulary and right in vocabulary):
            raise _invalid("A merge names a token that does not exist.", f"Merge {index}: {str(merge)[:60]!r}.")
        if left + right not in vocabulary:
            raise _invalid("A merge makes a token that does not exist.", f"Merge {index}: {str(merge)[:60]!r}.")


def _check_added(added: object, vocabulary: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(added, list):
        raise _invalid("The tokenizer's 'added_tokens' are no array.", f"They are of type {type(added).__name__}.")
    if len(added) > MAX_ADDED_TOKENS:
        raise _invalid("The tokenizer has too many added tokens.", f"{len(added)} of at most {MAX_ADDED_TOKENS}.")
    result: dict[str, int] = {}
    taken: set[int] = set()
    spelled = {token_id: text for text, token_id in vocabulary.items()}
    for entry in added:
        if not isinstance(entry, dict):
            raise _invalid("An added token is no object.", f"{str(entry)[:60]!r}.")
        text, token_id = _check_token(entry.get("content"), entry.get("id"))
        if text.isspace() and entry.get("special"):
            raise _invalid("A special token is white space.", f"Id {token_id}: {text[:40]!r}.")
        if text in result or token_id in taken:
            raise _invalid("An added token occurs twice.", f"Id {token_id}: {text[:40]!r}.")
        if spelled.get(token_id, text) != text:
            raise _invalid("Two tokens share one id.", f"Id {token_id}: {text[:40]!r} and {spelled[token_id][:40]!r}.")
        if entry.get("special") and any(entry.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
            raise UnsupportedModel(
                "A special token swallows the white space around it, which is not supported.",
                f"Id {token_id}: {text[:40]!r}.",
                "Use another model.",
            )
        result[text] = token_id
        taken.add(token_id)
    return result


def _check_steps(part: object, list_key: str, allowed: frozenset[str], depth: int = 0) -> list[str]:
    """Return the kinds of the steps that a normalizer, pre-tokenizer or decoder consists of, in order."""
    if part is None:
        return []
    if not isinstance(part, dict) or depth > _MAX_STEP_DEPTH:
        raise _invalid("A part of the tokenizer is malformed.", f"In '{list_key}', depth {depth}.")
    kind = part.get("type")
    if kind == "Sequence":
        steps = part.get(list_key)
        if not isinstance(steps, list):
            raise _invalid("A part of the tokenizer is malformed.", f"'{list_key}' is no array.")
        return [name for step in steps for name in _check_steps(step, list_key, allowed, depth + 1)]
    if not isinstance(kind, str) or kind not in allowed:
        raise UnsupportedModel(
            f"The tokenizer step {str(kind)[:40]!r} is not supported.",
            f"Supported in '{list_key}': {', '.join(sorted(allowed))}.",
            "Use a model with a byte-level BPE tokenizer.",
        )
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
        reason = lint_pattern(pattern["Regex"])
        if reason:
            raise _invalid(
                f"A regular expression of the tokenizer is too costly: {reason}.", f"{pattern['Regex'][:80]!r}."
            )
    return [kind]


# A quantifier with its lazy or possessive mark; after {n} a plus sign is a second quantifier. {} is text.
_QUANTIFIER: Final = re.compile(r"(?P<sign>[*+?])[?+]?|(?P<count>\{\d+(?:,\d*)?\}|\{,\d+\})\??")
_FIXED: Final = re.compile(r"\{\d+\}")
_GROUP_OPENING: Final = re.compile(r"\((?:\?(?:<[=!]|<\w+>|[a-z-]*:|[=!>~|]|[a-z-]+(?=\))))?")
_REFERENCE: Final = re.compile(r"\\(?:[1-9]|k<|g<)|\(\?\(")
_ESCAPE: Final = re.compile(r"\\[pPx]\{[^}]*\}|\\.", re.DOTALL)


@dataclass
class _Group:
    """An open group of a regular expression, and whether it can match in more than one way."""

    varies: bool = False


def lint_pattern(pattern: str) -> str | None:
    """Say why a regular expression (Oniguruma) could take exponential time, or return None.

    Refused are a repeated group whose inside can match in more than one way (a repetition or an alternative in it),
    back-references, calls of groups, and patterns over 4096 characters. Pre-tokenizers in use have none of these.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        return f"more than {_MAX_PATTERN_CHARS} characters"
    groups = [_Group()]
    last: _Group | None = None  # the group that ended just here, which a quantifier would repeat
    at = 0
    while at < len(pattern):
        if pattern[at] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1].varies |= last.varies
            at += 1
            continue
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier:
            repetition = quantifier["sign"] or quantifier["count"]
            if _repeats(repetition) and last is not None and last.varies:
                return "a repetition inside a repeated group"
            if _QUANTIFIER.match(pattern, quantifier.end()):
                return "a repeated repetition"
            groups[-1].varies |= not _FIXED.fullmatch(repetition)
            at = quantifier.end()
            continue
        last = None
        if _REFERENCE.match(pattern, at):
            return "a reference to another group"
        opening = _GROUP_OPENING.match(pattern, at)
        if opening:
            groups.append(_Group())
        elif pattern[at] == "|":
            groups[-1].varies = True
        at = opening.end() if opening else _atom_end(pattern, at)
    return None


def _repeats(quantifier: str) -> bool:
    """Tell whether a quantifier can match its atom more than once."""
    return quantifier in "*+" or (quantifier != "?" and not quantifier.endswith(("{1}", "{0,1}", "{,1}")))


def _atom_end(pattern: str, at: int) -> int:
    """Return where the escape, character class or character at ``at`` ends."""
    escape = _ESCAPE.match(pattern, at)
    if escape:
        return escape.end()
    if pattern[at] != "[":
        return at + 1
    depth = 0
    start = at
    while at < len(pattern):
        escape = _ESCAPE.match(pattern, at)
        if escape:
            at = escape.end()
            continue
        # A bracket that stands first in its class is a character of it.
        is_first = pattern[at - 1] == "[" or pattern[at - 2 : at] == "[^"
        depth += (pattern[at] == "[") - (pattern[at] == "]" and not (is_first and at > start))
        at += 1
        if depth == 0:
            return at
    return at
