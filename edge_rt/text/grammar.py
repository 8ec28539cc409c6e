"""Grammars over tokens: which token may follow, and which must, as the library ``llguidance`` computes it.

It never raises for a grammar or a token, but enters a state of error and stays there. So every answer of it is followed
by a question whether it failed, and a failure becomes :class:`InvalidGrammar`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence as Items
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidGrammar, RuntimeUnavailable
from edge_rt.text.answer_format import AnswerFormat
from edge_rt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

Mask = npt.NDArray[np.uint32]
"""One bit for each token of the model, the first one lowest; set where the token may follow."""

_SPACES: Final = r"[ \n]{0,20}"
_LIMITS: Final = {
    "max_items_in_row": 5000,
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
"""So that a grammar is compiled within a second and a mask takes milliseconds, or both end as an error."""


class _Vocabulary:
    """A tokenizer in the form that ``llguidance`` reads one: the bytes of all tokens, and a function that encodes.

    What marks something, such as the end of a turn, is not text: no text of an answer leads to such a token.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        count = tokenizer.vocab_size
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.mark_ids)
        self.tokens = [tokenizer.token_bytes(token) if token < count else b"" for token in range(rows)]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("texts are encoded")
        return self._tokenizer.encode_spans([(text, False)], continues=True)


class TokenTable:
    """The tokens of one model as grammars need them; made once, and shared by all requests.

    Args:
        rows: ids run from 0 to ``rows - 1``.

    Raises:
        RuntimeUnavailable: ``llguidance`` is not installed.
        InvalidGrammar: the model has no end token, so an answer could not end.
    """

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        library = _library()
        if not tokenizer.eos_token_ids:
            raise InvalidGrammar(
                "The model has no end token, so an answer in a format could not end.",
                "Its package names none.",
                "Use another model.",
            )
        vocabulary: Any = _Vocabulary(tokenizer, rows)
        self._tokenizer = library.LLTokenizer(vocabulary, n_vocab=rows, eos_token=list(tokenizer.eos_token_ids))
        self._words = (rows + 31) // 32
        spelled = (
            (text[0], token) for token, text in enumerate(vocabulary.tokens) if len(text) == 1 and text < b"\x80"
        )
        self._letters = dict(spelled)

    def matcher(self, wanted: AnswerFormat) -> Matcher:
        """Return what follows an answer of this format from its first token on.

        Raises:
            InvalidGrammar: it is malformed, too costly, or nothing fits it.
        """
        library = _library()
        try:
            grammar = _grammar_of(wanted)
        except ValueError as error:  # a number of hundreds of digits, for example
            raise _refusal(wanted, str(error)) from error
        limits = library.LLParserLimits(**_LIMITS)

        def new() -> llguidance.LLMatcher:
            matcher: llguidance.LLMatcher = library.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
            return matcher

        matcher = new()
        if matcher.is_error():
            raise _refusal(wanted, matcher.get_error())
        result = Matcher(matcher, self._words, self._letters, new)
        # Some grammars are found to be empty, or too costly, with their first mask.
        try:
            is_empty = not result.mask().any()
        except InvalidGrammar as error:
            cause = _one_line(matcher.get_error())
            raise _refusal(wanted, "no text fits it" if cause == "NoExtensionBias" else cause) from error
        if is_empty:
            raise _refusal(wanted, "no text fits it")
        return result


def require_valid(wanted: AnswerFormat) -> None:
    """Refuse a format that no model could follow; without the tables of one, so that a few bytes are enough.

    Raises:
        InvalidGrammar: it is malformed or too costly.
    """
    library = _library()
    try:
        grammar = _grammar_of(wanted)
    except ValueError as error:
        raise _refusal(wanted, str(error)) from error
    limits = library.LLParserLimits(**_LIMITS)
    is_wrong, messages = library.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if is_wrong:
        raise _refusal(wanted, messages[0])


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise RuntimeUnavailable(
            "Answers in a format need the library llguidance.",
            f"{error}.",
            "Install it: pip install llguidance; there is no build of it for some systems, such as musl.",
        ) from error
    return llguidance


def _grammar_of(wanted: AnswerFormat) -> str:
    library = _library()
    if wanted.kind == "regex":
        return str(library.LLMatcher.grammar_from_regex(wanted.source))
    if wanted.kind in ("grammar", "calls"):
        return str(library.LLMatcher.grammar_from_lark(wanted.source))
    spaces: dict[str, Any] = {"whitespace_pattern": _SPACES} if wanted.spaces else {"whitespace_flexible": False}
    return str(library.LLMatcher.grammar_from_json_schema(wanted.source, overrides=spaces))


_NAMES: Final = {
    "json": "JSON schema", "regex": "regular expression", "grammar": "grammar", "calls": "grammar of calls",
}  # fmt: skip


def _refusal(wanted: AnswerFormat, cause: str) -> InvalidGrammar:
    # A library's message may go on for pages, with the grammar in it.
    cause = _one_line(cause)
    return InvalidGrammar(
        f"The {_NAMES[wanted.kind]} cannot be used.",
        f"{cause[:1].upper()}{cause[1:]}.",
        "Correct or simplify it; docs/structured-output.md says what can be enforced.",
    )


def _one_line(cause: str) -> str:
    return re.sub(r"\s+", " ", cause.replace("<non-verbose/>", "")).strip().rstrip(".")[:300]


_LONG_RUN: Final = 1000
"""In tokens; a run of as many bytes costs the engine a part of its limits."""


class Matcher:
    """Follows one answer, token by token.

    Args:
        words: of a mask.
        letters: the token of every byte of ASCII that is one.
        new: returns the matcher anew, at the beginning.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        words: int,
        letters: Mapping[int, int],
        new: Callable[[], llguidance.LLMatcher],
    ) -> None:
        self._matcher = matcher
        self._letters = letters
        self._new = new
        self._words = words
        self._taken: list[int] = []

    @property
    def depth(self) -> int:
        """Tokens taken in so far."""
        return len(self._taken)

    def allows(self, token_id: int) -> bool:
        """Return whether a token, no end token, may follow."""
        allowed: bool = self._matcher.validate_tokens([token_id]) == 1
        return allowed

    def allows_all(self, token_ids: Items[int]) -> bool:
        """Return whether tokens, no end tokens, may follow one after the other."""
        allowed: bool = self._matcher.validate_tokens(list(token_ids)) == len(token_ids)
        return allowed

    def mask(self) -> Mask:
        """Return which tokens may follow, end tokens among them where the answer may end.

        Raises:
            InvalidGrammar: the grammar turned out to be too costly.
        """
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        self.check()
        return found

    def take(self, token_ids: Items[int]) -> None:
        """Take in tokens that follow; all of them must be allowed, and none an end token.

        Raises:
            InvalidGrammar: the grammar turned out to be too costly.
        """
        self._matcher.consume_tokens(list(token_ids))
        self._taken += token_ids
        self.check()

    def take_back(self, depth: int) -> None:
        """Go back to where ``depth`` tokens were taken in."""
        if depth < self.depth:
            self._matcher.rollback(self.depth - depth)
            del self._taken[depth:]

    def forced(self, most: int) -> list[int]:
        """Return the next tokens that must follow, spelled as the tokenizer does; none where there is a choice."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if len(tokens) > max(most, _LONG_RUN):
            # Having followed a run of a million bytes, the engine is near its limits, and so are its copies.
            self._matcher = self._new()
            self._matcher.consume_tokens(self._taken)
        return tokens[:most]

    def may_leave(self, cycle: bytes, behind: int) -> bool:
        """Return whether something else than a cycle of text could have followed, ``behind`` tokens ago.

        A character that differs is no way out if the cycle may go on behind it, or behind one more: so it is within the
        text of a string, and with other items of a list that needs more of them.
        """
        if behind >= self.depth or not set(cycle) <= self._letters.keys():
            return True
        probe = self._matcher.deep_copy()
        probe.rollback(behind)
        for at, byte in enumerate(cycle):
            if probe.is_accepting():
                return True
            rest = [self._letters[one] for one in cycle[at:] + cycle[:at]]
            if any(self._leads_out(probe, token, rest) for other, token in self._letters.items() if other != byte):
                return True
            if not probe.consume_token(rest[0]):
                return False
        return False

    def _leads_out(self, probe: llguidance.LLMatcher, token: int, rest: list[int]) -> bool:
        def goes_on(*tokens: int) -> bool:
            if probe.validate_tokens(list(tokens)) < len(tokens):
                return False
            wanted = len(tokens) + len(rest)
            turned = (rest[at:] + rest[:at] for at in range(len(rest)))
            return any(probe.validate_tokens([*tokens, *one]) == wanted for one in turned)

        if not probe.validate_tokens([token]):
            return False
        return not goes_on(token) and not any(goes_on(token, second) for second in self._letters.values())

    @property
    def may_end(self) -> bool:
        """Whether the answer is whole."""
        return bool(self._matcher.is_accepting())

    @property
    def must_end(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def check(self) -> None:
        """Raise if the grammar failed.

        Raises:
            InvalidGrammar: with the cause.
        """
        if self._matcher.is_error():
            cause = _one_line(self._matcher.get_error())
            raise InvalidGrammar(
                "The answer's format became too costly to follow.",
                f"{cause or self._matcher.stop_reason()}; {self.depth} tokens of the answer had been written.",
                "Simplify the schema or grammar.",
            )
