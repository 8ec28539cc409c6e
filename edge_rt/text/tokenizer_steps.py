"""Checks the steps of a ``tokenizer.json`` around its merges, and derives what edge-rt does itself.

Two kinds of BPE are supported:

* over bytes (GPT-2 and its successors): text is cut by regular expressions, and a token spells bytes in GPT-2's
  alphabet;
* with byte fallback (converted from SentencePiece): a token spells text, with U+2581 for a space, and characters that
  the vocabulary lacks are written as bytes, ``<0x00>`` to ``<0xFF>``.

The second kind may put a space before a text. The library would do so at the start of everything that it is given, and
edge-rt gives it long texts in pieces. So :class:`Prefix` takes that over, and the library is given steps without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from edge_rt.errors import InvalidTokenizer, UnsupportedModel

_MAX_PATTERN_CHARS: Final = 4096

# A quantifier with its lazy or possessive suffix; after {n} a plus sign is a second quantifier. {} is literal text.
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
    """Return the reason why a regular expression (Oniguruma) could take exponential time, or None.

    Refused are a repeated group whose inside can match in more than one way (a repetition or an alternative in it),
    back-references, calls of groups, and patterns over 4096 characters. Pre-tokenizers in use have none of these.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        return f"more than {_MAX_PATTERN_CHARS} characters"
    groups = [_Group()]
    last: _Group | None = None  # the group that has just ended, which a quantifier would repeat
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
    """Return whether a quantifier can match its atom more than once."""
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
        # A bracket that is first in its class is a literal character.
        is_first = pattern[at - 1] == "[" or pattern[at - 2 : at] == "[^"
        depth += (pattern[at] == "[") - (pattern[at] == "]" and not (is_first and at > start))
        at += 1
        if depth == 0:
            return at
    return at


SPACE: Final = "\u2581"
"""What vocabularies with byte fallback write for a space."""
COMPOSING: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""Normalizers of Unicode."""

_FETCH_AGAIN: Final = "Fetch the model again, from a trusted source."
_OTHER: Final = "Use a model with a byte-level or a byte-fallback BPE tokenizer."
_NORMALIZERS: Final = COMPOSING | {"Prepend", "Replace"}
_PRE_TOKENIZERS: Final = frozenset({"ByteLevel", "Digits", "Punctuation", "Split", "Metaspace"})
_DECODERS: Final = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace"})
_MAX_STEP_DEPTH: Final = 8
_MAX_STEPS: Final = 64
_MAX_INSERTED: Final = 16  # characters that one step may write in place of others

Step = Mapping[str, Any]


@dataclass(frozen=True)
class Prefix:
    """What is put before a text.

    Attributes:
        text: U+2581, or another text; empty: nothing.
        where: before every text that stands at the start or behind an added token, or at the start only.
        is_missing_only: not before a text that begins with a space.
    """

    text: str = ""
    where: Literal["everywhere", "start"] = "everywhere"
    is_missing_only: bool = False

    def before(self, text: str, *, is_start: bool) -> str:
        """Return ``text`` with its prefix; ``is_start``: it is the start of the whole text."""
        if not text or (self.where == "start" and not is_start):
            return text
        if self.is_missing_only and text[0] in (" ", self.text):
            return text
        return self.text + text


@dataclass(frozen=True)
class Steps:
    """The steps of a tokenizer, in order.

    Attributes:
        normalizers: what is done to text first, without the prefix.
        is_byte_level: the kind: over bytes, or with byte fallback.
        drops_space: whether decoding leaves out a space at the very start.
        is_changed: whether the library has to be given other steps than the file's.
    """

    normalizers: tuple[Step, ...]
    pre_tokenizers: tuple[Step, ...]
    is_byte_level: bool
    prefix: Prefix
    drops_space: bool
    is_changed: bool

    @property
    def composes(self) -> bool:
        """Whether text is normalised to a form of Unicode."""
        return any(step["type"] in COMPOSING for step in self.normalizers)

    @property
    def replaces(self) -> bool:
        """Whether something other than a space is replaced in text, so that its length says nothing of the tokens."""
        return any(step["type"] == "Replace" and not is_space_step(step) for step in self.normalizers)


def check_steps(document: Mapping[str, object]) -> Steps:
    """Check the normalizer, the pre-tokenizer and the decoder."""
    normalizers = _flat(document.get("normalizer"), "normalizers", _NORMALIZERS)
    cutting = _flat(document.get("pre_tokenizer"), "pretokenizers", _PRE_TOKENIZERS)
    decoders = _flat(document.get("decoder"), "decoders", _DECODERS)
    for step in normalizers + decoders:
        _check_inserted(step)
    is_byte_level = any(step["type"] == "ByteLevel" for step in cutting)
    if is_byte_level != any(step["type"] == "ByteLevel" for step in decoders):
        raise _not_bytes(cutting, decoders)
    prefix, is_changed = Prefix(), False
    if normalizers and normalizers[0]["type"] == "Prepend":
        prefix, is_changed = Prefix(str(normalizers[0]["prepend"])), True
        normalizers = normalizers[1:]
    if any(step["type"] == "Prepend" for step in normalizers):
        raise UnsupportedModel(
            "The tokenizer puts text before what it has already changed, which is not supported.",
            f"Normalizers: {_names(normalizers)}; 'Prepend' is supported as the first one.",
            "Use another model.",
        )
    metaspaces = [step for step in cutting if step["type"] == "Metaspace"]
    if metaspaces:
        if prefix.text or len(metaspaces) > 1 or is_byte_level:
            raise _not_bytes(cutting, decoders)
        prefix, is_changed = _prefix_of(metaspaces[0]), True
    drops_space = not is_byte_level and _check_decoding(decoders, cutting, document.get("model"))
    return Steps(tuple(normalizers), tuple(cutting), is_byte_level, prefix, drops_space, is_changed)


def library_steps(steps: Steps) -> dict[str, object]:
    """Return the normalizer and the pre-tokenizer for the library: those of the file without a prefix."""
    cutting = [
        {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": step.get("split", True)}
        if step["type"] == "Metaspace"
        else step
        for step in steps.pre_tokenizers
    ]
    normalizer = {"type": "Sequence", "normalizers": list(steps.normalizers)} if steps.normalizers else None
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cutting} if cutting else None,
    }


def is_space_step(step: Step) -> bool:
    """Return whether a normalizer writes U+2581 for every space, and does nothing else."""
    return step["type"] == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == SPACE


def _flat(part: object, list_key: str, allowed: frozenset[str], depth: int = 0) -> list[Step]:
    """Return the steps that a part consists of, in order."""
    if part is None:
        return []
    if not isinstance(part, dict) or depth > _MAX_STEP_DEPTH:
        raise _malformed(f"In '{list_key}', depth {depth}.")
    kind = part.get("type")
    if kind == "Sequence":
        steps = part.get(list_key)
        if not isinstance(steps, list) or len(steps) > _MAX_STEPS:
            raise _malformed(f"'{list_key}' is not an array of at most {_MAX_STEPS} steps.")
        return [inner for step in steps for inner in _flat(step, list_key, allowed, depth + 1)]
    if not isinstance(kind, str) or kind not in allowed:
        raise UnsupportedModel(
            f"The tokenizer step {str(kind)[:40]!r} is not supported.",
            f"Supported in '{list_key}': {', '.join(sorted(allowed))}.",
            _OTHER,
        )
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
        reason = lint_pattern(pattern["Regex"])
        if reason:
            raise InvalidTokenizer(
                f"A regular expression of the tokenizer is too costly: {reason}.",
                f"{pattern['Regex'][:80]!r}.",
                _FETCH_AGAIN,
            )
    return [part]


def _check_inserted(step: Step) -> None:
    """Refuse texts that would make what is encoded, or decoded, many times longer."""
    keys = {"Prepend": ("prepend",), "Replace": ("content",), "Strip": ("content",)}.get(step["type"], ())
    for key in keys:
        text = step.get(key)
        if not isinstance(text, str) or len(text) > _MAX_INSERTED or (key == "prepend" and not text):
            raise _malformed(f"'{key}' of {step['type']} is {str(text)[:40]!r}, wanted {_MAX_INSERTED} characters.")
    pattern = step.get("pattern")
    if step["type"] == "Replace" and (not isinstance(pattern, dict) or "" in pattern.values()):
        raise _malformed(f"'pattern' of Replace is {str(pattern)[:40]!r}.")


def _prefix_of(step: Step) -> Prefix:
    if step.get("replacement") != SPACE:
        raise UnsupportedModel(
            "The tokenizer spells spaces in an unknown way.",
            f"Metaspace writes {str(step.get('replacement'))[:20]!r}, supported is {SPACE!r}.",
            _OTHER,
        )
    scheme = _scheme_of(step)
    if scheme == "never":
        return Prefix()
    return Prefix(SPACE, "start" if scheme == "first" else "everywhere", is_missing_only=True)


def _scheme_of(step: Step) -> str:
    """Return when Metaspace puts a space first; older files say so by a flag."""
    scheme = step.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if step.get("add_prefix_space", True) else "never"
    if scheme not in ("always", "first", "never"):
        raise _malformed(f"'prepend_scheme' is {str(scheme)[:20]!r}.")
    return str(scheme)


def _check_decoding(decoders: Sequence[Step], cutting: Sequence[Step], model: object) -> bool:
    """Check that a token with byte fallback is its text with spaces; return whether a space at the start is dropped."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    has_bytes = isinstance(vocabulary, dict) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    if not has_bytes or not isinstance(model, dict) or not model.get("byte_fallback"):
        raise _not_bytes(cutting, decoders)
    has_spaces, has_fallback, drops = False, False, False
    for step in decoders:
        if step["type"] == "Metaspace" and step.get("replacement") == SPACE:
            has_spaces, drops = True, _scheme_of(step) != "never"
        elif step["type"] == "Replace" and step.get("pattern") == {"String": SPACE} and step.get("content") == " ":
            has_spaces = True
        elif step["type"] == "Strip" and _strips_one(step):
            drops = step.get("start") == 1
        elif step["type"] == "ByteFallback":
            has_fallback = True
        elif step["type"] != "Fuse":
            raise _not_bytes(cutting, decoders)
    if not (has_spaces and has_fallback):
        raise _not_bytes(cutting, decoders)
    return drops


def _strips_one(step: Step) -> bool:
    """Return whether a decoder removes one space at most, at the start."""
    return step.get("content") == " " and step.get("start") in (0, 1) and step.get("stop") == 0


def _names(steps: Sequence[Step]) -> str:
    return ", ".join(step["type"] for step in steps) or "none"


def _malformed(numbers: str) -> InvalidTokenizer:
    return InvalidTokenizer("A part of the tokenizer is malformed.", numbers, _FETCH_AGAIN)


def _not_bytes(cutting: Sequence[Step], decoders: Sequence[Step]) -> UnsupportedModel:
    return UnsupportedModel(
        "The tokenizer does not give every text back byte by byte, which is not supported.",
        f"Pre-tokenizer: {_names(cutting)}; decoder: {_names(decoders)}; it needs ByteLevel in both, or byte_fallback"
        " with 256 byte tokens, ByteFallback and spaces for U+2581 in the decoder.",
        _OTHER,
    )
