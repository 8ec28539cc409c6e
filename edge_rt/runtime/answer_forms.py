"""What an answer may have besides its text, and the grammars that hold it to a format or to calls of tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence as Items
from dataclasses import dataclass
from typing import Final

from edge_rt.errors import InvalidGrammar, MemoryBudgetExceeded
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar, Opening
from edge_rt.runtime.decode.call_grammar import CallGrammar, FreeText
from edge_rt.text.answer_format import AnswerFormat
from edge_rt.text.grammar import Matcher, TokenTable, require_valid
from edge_rt.text.thoughts import ThoughtMarkers
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tool_calls import Tools
from edge_rt.text.tool_grammar import call_start, calls_format, chosen_tools, faulty_tool


@dataclass(frozen=True)
class AnswerForm:
    """What an answer may have besides its text.

    Attributes:
        thoughts: how thoughts are marked; None without thoughts.
        tools: functions that it may call; None: none.
        begun: text of the answer that the prompt ends with.
    """

    thoughts: ThoughtMarkers | None = None
    tools: Tools | None = None
    begun: str = ""

    @property
    def markers(self) -> str:
        """The markers that have to be seen in the answer's text, in one text."""
        marks = () if self.thoughts is None else self.thoughts.texts
        return " ".join((*marks, *(() if self.tools is None else self.tools.marks)))


PLAIN_ANSWER: Final = AnswerForm()
"""An answer that is text and nothing else: to a prompt that is no list of messages."""


class AnswerGrammars:
    """Makes what follows the answers of one model; tables of its tokens are made once.

    Args:
        vocab_size: rows of the model.
        reserve: claims the memory of the tables; None: there is no limit.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, reserve: Callable[[], None] | None = None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._reserve = reserve
        self._table: TokenTable | None = None
        self._making = threading.Lock()

    @property
    def table(self) -> TokenTable:
        """The tables; made when they are asked for first, which takes some time.

        Raises:
            InvalidGrammar: the model has no end token.
            MemoryBudgetExceeded: they do not fit the budget.
            RuntimeUnavailable: the library that follows grammars is not installed.
        """
        self.prepare()
        assert self._table is not None
        return self._table

    def prepare(self) -> None:
        """Make the tables, unless they are made; raises as ``table``."""
        with self._making:
            if self._table is None:
                if self._reserve is not None:
                    self._reserve()
                self._table = TokenTable(self._tokenizer, self._vocab_size)

    def of(
        self, config: GenerationConfig, form: AnswerForm, *, ahead: bool = False
    ) -> tuple[AnswerFormat | None, AnswerGrammar] | None:
        """Return what an answer has to fit, and what lets only such answers through; None: any text.

        Args:
            ahead: whether the grammar of calls that may never come is made now.

        Raises:
            ConfigError: a call is asked for that there cannot be.
            InvalidGrammar: the format is malformed, too costly, or nothing fits it.
            MemoryBudgetExceeded, RuntimeUnavailable: as of ``table``.
        """
        choice = config.choice
        if choice.kind == "required":
            tools = chosen_tools(form.tools, choice)
            # A named function is called once.
            several = config.parallel_tool_calls and choice.name is None
            wanted = calls_format(tools, self._tokens(tools), several=several, is_forced=True, is_strict=True)
            return wanted, self._whole(wanted, form, tools)
        wanted_format = config.answer_format()
        if wanted_format is not None:
            return wanted_format, self._whole(wanted_format, form)
        may_call = choice.kind == "auto" and form.tools is not None and config.accept == "match"
        if not may_call or form.tools is None or form.tools.syntax is None or form.tools.names is None:
            return None
        grammar = self._free(form.tools, form, several=config.parallel_tool_calls)
        if ahead:
            grammar.prepare()
        return None, grammar

    def _whole(self, wanted: AnswerFormat, form: AnswerForm, tools: Tools | None = None) -> AnswerGrammar:
        try:
            self.prepare()
        except MemoryBudgetExceeded:
            # More memory would not help a format that is wrong.
            require_valid(wanted)
            raise
        matcher = self.table.matcher(wanted) if tools is None else self._of_calls(wanted, tools)
        if tools is not None and matcher.allows_all(begun := self._begun(form)):
            matcher.take(begun)
        ends = self._tokenizer.eos_token_ids
        return AnswerGrammar(
            matcher, ends, self._vocab_size, self._opening(form, is_call=tools is not None), wanted.warnings
        )

    def _free(self, tools: Tools, form: AnswerForm, *, several: bool) -> CallGrammar:
        tokens = self._tokens(tools)

        def calls() -> tuple[Matcher, tuple[str, ...]]:
            wanted = calls_format(tools, tokens, several=several, is_forced=False, is_strict=False)
            return self._of_calls(wanted, tools), wanted.warnings

        has_channels = form.thoughts is not None and form.thoughts.has_channels
        start = call_start(tools, tokens, has_channels=has_channels)
        free = FreeText(start, form.thoughts, self._tokenizer.token_bytes)
        return CallGrammar(free, calls, self._tokenizer.eos_token_ids, self._vocab_size, self._begun(form))

    def _of_calls(self, wanted: AnswerFormat, tools: Tools) -> Matcher:
        """Return what follows calls; an error of their grammar names the tool, if it is one alone."""
        table = self.table

        def refuses(parameters: AnswerFormat) -> str | None:
            try:
                table.matcher(parameters)
            except InvalidGrammar as error:
                return error.numbers
            return None

        try:
            return table.matcher(wanted)
        except InvalidGrammar as error:
            why = faulty_tool(tools, refuses)
            if why is None:
                raise
            raise InvalidGrammar("The parameters of a tool cannot be enforced.", why, error.action) from error

    def _tokens(self, tools: Tools) -> dict[str, int]:
        """Return the ids of those marks of calls that are control tokens."""
        found = {mark: self._tokenizer.token_to_id(mark) for mark in tools.marks}
        return {mark: token for mark, token in found.items() if token is not None and token in self._tokenizer.mark_ids}

    def _begun(self, form: AnswerForm) -> Items[int]:
        return self._tokenizer.encode_spans([(form.begun, True)], continues=True) if form.begun else ()

    def _opening(self, form: AnswerForm, *, is_call: bool) -> Opening | None:
        markers = form.thoughts
        if markers is None:
            return None
        # Calls begin with a marker of their own.
        before = "" if is_call else markers.answer
        begin, answer = (
            tuple(self._tokenizer.encode_spans([(text, True)], continues=True)) if text else ()
            for text in (markers.begin, before)
        )
        end = (markers.end + before).encode()
        is_thinking = markers.is_open or markers.is_begun
        return Opening(begin, answer, end, self._tokenizer.token_bytes, in_thoughts=is_thinking)
