"""One request from prompt to result: reuse, prefill, decode, text, times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as TokenIds
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from edge_rt.errors import DEVICE_FAILURES, Cancelled, EdgeRTError
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.prompt_cache import PromptCache
from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar
from edge_rt.runtime.decode.detokenizer import TextStream
from edge_rt.runtime.decode.draft import Accepted, Drafter, NullDrafter
from edge_rt.runtime.decode.logprobs import LogProbs
from edge_rt.runtime.decode.loop import AcceptanceRule, Decoding, Target, decode, prefill
from edge_rt.runtime.decode.repetition import RepetitionGuard
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.expert_reads import ExpertCounts, ReadsOfAnswer
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event, FinishReason, Memory, Result, Timings, Usage
from edge_rt.runtime.stream import Events, Outcome
from edge_rt.system.process_memory import peak_rss_bytes
from edge_rt.text.answer_format import AnswerFormat
from edge_rt.text.thoughts import ThoughtStream
from edge_rt.text.tool_calls import ToolCall, Tools, parse_tool_calls, split_tool_calls


@dataclass
class _Clock:
    """Moments of a generation, in seconds of ``time.perf_counter``."""

    called: float
    begun: float = 0.0
    first: float = 0.0
    chosen: float = 0.0
    last: float = 0.0
    num_unasked: int = 0

    def tick(self, step: Accepted) -> None:
        """Note that tokens were emitted; those that a format forces in the beginning come before the prompt's pass."""
        self.last = time.perf_counter()
        self.first = self.first or self.last
        if len(step.unasked) < len(step.token_ids):
            self.chosen = self.chosen or self.last
        elif not self.chosen:
            self.num_unasked = len(step.token_ids)


@dataclass(frozen=True)
class Held:
    """A model that is held for one generation.

    Attributes:
        cache: that of the target; None: the generation's own.
        instead: returns what goes on with an answer, from the beginning of its text, where a GPU has failed with one of
            ``DEVICE_FAILURES``; None: nothing does.
        note: a sentence about that.
    """

    target: Target
    drafter: Drafter
    rule: AcceptanceRule = accept
    cache: KVCache | None = None
    instead: Callable[[EdgeRTError], Held] | None = None
    note: str = ""


Hold = Callable[[CancelToken], AbstractContextManager[Held]]
"""Holds a model while a block runs; the token stops its passes."""


class Generation:
    """Runs one request.

    Args:
        cache: its cache; rows of the prompt that it holds already are not computed again.
        experts: counts of the cache of experts, and its bytes; None: there is none.
        planned: bytes of the memory plan and of the budget when the generation has ended, for the result.
        guard: ends an answer that repeats itself or counts without end; None lets it go on.
        thoughts: takes thoughts and answer apart; None if all text is the answer.
        tools: functions that it may call; None: none.
        begun: text of the answer that the prompt ends with.
        logprobs: receives those of every token; None leaves them out.
        wanted: what the answer has to fit, and what follows its grammar; None: any text.
        prompts: rows of earlier prompts; None: none are stored.
    """

    def __init__(
        self,
        sequence: Sequence,
        hold: Hold,
        cache: KVCache,
        sampler: Sampler,
        text: TextStream,
        *,
        chunk: int,
        called: float,
        on_prefill: Callable[[int, int], None] | None = None,
        spec_mode: str = "off",
        planned: Callable[[], tuple[int | None, int | None]] = lambda: (None, None),
        experts: ExpertCounts | None = None,
        guard: RepetitionGuard | None = None,
        thoughts: ThoughtStream | None = None,
        tools: Tools | None = None,
        begun: str = "",
        logprobs: LogProbs | None = None,
        wanted: tuple[AnswerFormat | None, AnswerGrammar] | None = None,
        prompts: PromptCache | None = None,
    ) -> None:
        self._prompts = prompts
        self._logprobs = logprobs
        self._guard = guard
        self._format: AnswerFormat | None = None
        self._grammar: AnswerGrammar | None = None
        if wanted is not None:
            self._format, self._grammar = wanted
        self._thoughts = thoughts or ThoughtStream(None)
        self._tools = tools
        self._begun = begun
        self.sequence = self._sequence = sequence
        self._hold = hold
        self._cache = cache
        self._sampler = sampler
        self._text = text
        self._chunk = chunk
        self._clock = _Clock(called)
        self._on_prefill = on_prefill
        self._spec_mode = spec_mode
        self._planned = planned
        self._reads = None if experts is None else ReadsOfAnswer(experts)
        self._drafter: Drafter = NullDrafter()
        self._made: Result | None = None
        self._cached = 0
        self._taken = self._taken_back = self._forced_back = 0
        self._notes: tuple[str, ...] = ()

    def events(self, outcome: Outcome) -> Events:
        """Generate, and tell the outcome.

        Whatever ends it, the cache holds the rows of whole steps only. A prompt that was cancelled before its first
        token leaves the cache as it was, but for what the prompt did not share with it (and for what came behind the
        last copy that is kept, where layers have a state or a window that has given up the rows behind it).
        """
        sequence, cancel = self._sequence, outcome.cancel
        with outcome.telling(self.settled):
            try:
                with self._hold(cancel) as held:
                    decoding: Decoding | None = None
                    try:
                        while True:
                            failed: EdgeRTError | None = None
                            try:
                                if decoding is None:
                                    decoding = self.open(held.cache or self._cache, held.drafter, held.rule)
                                prefill(sequence, held.target, self._cache, self._chunk, self._on_prefill)
                                for step in decode(decoding, held.target, chunk=self._chunk):
                                    yield self.take(step, outcome)
                                    if cancel.cancelled:
                                        sequence.finish("cancelled")
                            except Cancelled:
                                self.stop()
                            except DEVICE_FAILURES as error:
                                if held.instead is None:
                                    raise
                                failed = error
                            if failed is None or held.instead is None:
                                break
                            # Outside of the handler, whose error holds what was opened on the device.
                            decoding = None
                            held = held.instead(failed)
                            decoding = self.resume(held)
                            if (missed := self.missed()) is not None:
                                yield self.take(missed, outcome)
                        if (rest := self.rest()) is not None:
                            yield rest
                    except GeneratorExit:
                        # Left in the middle: whole steps stay.
                        sequence.finish("cancelled")
                        self._made = self._result()
                        raise
                    self.close()
            except Cancelled:
                # Stopped while the latency of passes was measured.
                sequence.finish("cancelled")

    def open(self, cache: KVCache, drafter: Drafter, rule: AcceptanceRule) -> Decoding:
        """Begin in a cache, whose rows of the prompt are kept; return what computes the rest."""
        self._cache, self._drafter = cache, drafter
        self._clock.begun = time.perf_counter()
        if self._reads is not None:
            self._reads.begin()
        cache.keep_state()
        # What is kept can be less than what is shared: see KVCache.truncate.
        self._cached = cache.truncate(cache.common_prefix(self._sequence.token_ids[:-1]))
        if self._prompts is not None:
            self._cached = self._prompts.restore(cache, self._sequence.token_ids)
        sequence = self._sequence
        cache.plan_stops(sequence.token_ids[: sequence.num_prompt_tokens], sequence.end_ids)
        return Decoding(self._sequence, drafter, cache, self._sampler, rule, self._logprobs, self._grammar)

    def resume(self, held: Held) -> Decoding:
        """Go on elsewhere, in another cache; return what computes the text that this lacks, and then the rest."""
        assert held.cache is not None, "there is no other cache"
        sequence = self._sequence
        self._cache, self._drafter = held.cache, held.drafter
        self._notes = (*self._notes, held.note)
        self._on_prefill = None
        self._cached = self._cache.truncate(self._cache.common_prefix(sequence.token_ids[:-1]))
        prompt, has_begun = sequence.token_ids[: sequence.num_prompt_tokens], sequence.num_answer_tokens > 0
        self._cache.plan_stops(prompt, sequence.end_ids, has_answer=has_begun)
        return Decoding(
            sequence,
            held.drafter,
            self._cache,
            self._sampler,
            held.rule,
            self._logprobs,
            self._grammar,
            has_begun=has_begun,
        )

    def missed(self) -> Accepted | None:
        """Return the tokens that were chosen in a step that failed afterwards; None if there are none."""
        tokens = tuple(self._sequence.answer_ids[self._taken :])
        return Accepted(tokens, (), 0) if tokens else None

    def take(self, step: Accepted, outcome: Outcome) -> Event:
        """Turn the tokens of a step into an event."""
        self._clock.tick(step)
        self._taken += len(step.token_ids)
        if self._reads is not None:
            self._reads.tick()
        event = self._event(step)
        outcome.text = self._thoughts.text
        return event

    def tell_progress(self) -> None:
        """Tell how much of the prompt is computed, behind a pass that gave no token."""
        if self._on_prefill is not None and self._cache.length < self._sequence.num_prompt_tokens:
            self._on_prefill(self._cache.length, self._sequence.num_prompt_tokens)

    def rest(self) -> Event | None:
        """Return the text that was held back; None if there is none."""
        thought, rest = self._finish_text()
        return Event(rest, (), thought) if thought or rest else None

    def stop(self) -> None:
        """End it as a cancelled one, between two steps."""
        self._sequence.finish("cancelled")
        if not self._sequence.num_answer_tokens:
            self._cache.truncate(self._cached)

    def close(self) -> None:
        """Make the result, while the model is held: drafter and cache are the next generation's afterwards."""
        if self._prompts is not None:
            self._prompts.store(self._cache)
        self._made = self._result()

    def settled(self) -> Result:
        """Return the result as it was when the model was released."""
        return self._result() if self._made is None else self._made

    def _event(self, step: Accepted) -> Event:
        """Turn one step into text; tokens that were emitted behind a stop text or a circle are taken back."""
        pieces, token_ids, forced = [], step.token_ids, frozenset(step.unasked)
        for count, token in enumerate(token_ids, start=1):
            pieces.append(self._text.push((token,)))
            if (reason := self._end_at(token_ids, count, is_forced=count - 1 in forced)) is not None:
                sequence = self._sequence
                self._taken_back = len(token_ids) - count
                self._forced_back = sum(index >= count for index in forced)
                sequence.end_after(sequence.num_answer_tokens - self._taken_back, reason)
                if self._logprobs is not None:
                    del self._logprobs.tokens[sequence.num_answer_tokens :]
                # Tokens that a grammar forced are in no row yet.
                self._cache.truncate(min(self._cache.length, len(sequence.token_ids) - 1))
                return self._made_of(pieces, token_ids[:count], min(step.num_accepted, count))
        return self._made_of(pieces, token_ids, step.num_accepted)

    def _made_of(self, pieces: list[str], token_ids: TokenIds[int], num_accepted: int) -> Event:
        thought, text = self._thoughts.push("".join(pieces))
        logprobs = () if self._logprobs is None else tuple(self._logprobs.tokens[-len(token_ids) :])
        accepted_text = min(len(text), sum(map(len, pieces[:num_accepted])))
        return Event(text, tuple(token_ids), thought, logprobs, num_accepted, accepted_text)

    def _finish_text(self) -> tuple[str, str]:
        """Return the thoughts and the answer that were held back; the second time nothing."""
        first, second = self._thoughts.push(self._text.finish()), self._thoughts.finish()
        return first[0] + second[0], first[1] + second[1]

    def _end_at(self, token_ids: TokenIds[int], count: int, *, is_forced: bool) -> FinishReason | None:
        """Return why the answer ends with the token ``count`` of a step, if the text or the guard says so."""
        if self._text.stop_string is not None:
            return "stop"
        token, end_ids = token_ids[count - 1], self._sequence.end_ids
        # An end token is the model's own way out, and what a format forces is not the model's circle.
        if self._guard is None or is_forced or token in end_ids or not self._guard.push(token):
            return None
        if self._grammar is not None:
            behind = sum(one not in end_ids for one in token_ids[count:])
            if not self._grammar.is_circle(self._text.text[-1000:].encode(), behind):
                self._guard.forget()
                return None
        return "repetition"

    def _result(self) -> Result:
        sequence = self._sequence
        self._finish_text()
        # The bytes of an incomplete character can complete a stop text at the very end.
        reason = "stop" if self._text.stop_string is not None else sequence.finish_reason
        assert reason is not None
        return Result(
            text=self._thoughts.text,
            token_ids=tuple(sequence.answer_ids),
            finish_reason=reason,
            stop_string=self._text.stop_string,
            usage=Usage(
                prompt_tokens=sequence.num_prompt_tokens,
                completion_tokens=sequence.num_answer_tokens,
                total_tokens=len(sequence.token_ids),
                cached_tokens=self._cached,
                forced_tokens=0 if self._grammar is None else self._grammar.num_forced - self._forced_back,
            ),
            timings=self._timings(),
            spec=self._drafter.statistics(self._spec_mode, self._taken_back),
            memory=Memory(peak_rss_bytes(), self._cache.used_bytes, *self._planned()),
            reasoning=self._thoughts.reasoning,
            tool_calls=self._tool_calls(),
            logprobs=None if self._logprobs is None else tuple(self._logprobs.tokens),
            parsed=self._parsed(reason),
            warnings=self._warnings(),
            experts=None if self._reads is None else self._reads.statistics(sequence.num_answer_tokens),
        )

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        # An answer in a format calls nothing, though it may look like a call.
        is_other = self._format is not None and self._format.kind != "calls"
        if self._tools is None or is_other:
            return ()
        text, begun = self._thoughts.text, self._begun
        if self._format is None:
            return parse_tool_calls(begun + text, self._tools.names)
        # What the message has begun need not be a part of the calls that are asked for.
        return split_tool_calls(text, self._tools.names, begun)[1]

    def _parsed(self, reason: FinishReason) -> Any:
        """Return the object that a whole answer is; None for others."""
        wanted, grammar = self._format, self._grammar
        if wanted is None or grammar is None or wanted.convert is None or reason != "stop" or not grammar.is_whole:
            return None
        return wanted.convert(self._thoughts.text)

    def _warnings(self) -> tuple[str, ...]:
        of_format = (*self._notes, *(() if self._grammar is None else self._grammar.warnings))
        return of_format if self._prompts is None else (*of_format, *self._prompts.take_warnings())

    def _timings(self) -> Timings:
        clock, answered = self._clock, self._sequence.num_answer_tokens
        is_unasked = 0 < answered == clock.num_unasked
        computed = 0 if is_unasked else self._sequence.num_prompt_tokens - self._cached
        first = clock.first or time.perf_counter()
        chosen = clock.chosen or first
        prompt_s, answer_s = chosen - (clock.begun or first), max(0.0, clock.last - chosen)
        return Timings(
            cache_n=self._cached,
            prompt_n=computed,
            prompt_ms=1e3 * prompt_s,
            prompt_per_second=computed / prompt_s if prompt_s else 0.0,
            predicted_n=answered,
            predicted_ms=1e3 * answer_s,
            predicted_per_second=max(0, answered - clock.num_unasked - 1) / answer_s if answer_s else 0.0,
            ttft_ms=1e3 * (first - clock.called),
        )


def usable_ids(token_ids: TokenIds[int], end_ids: frozenset[int]) -> list[int]:
    """Return an answer's tokens without the end token it may close with."""
    ids = list(token_ids)
    return ids[:-1] if ids and ids[-1] in end_ids else ids
