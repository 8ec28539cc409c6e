"""THE decode loop: draft, verify, accept, commit. Plain decoding is the same loop with an empty draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence as TokenIds
from typing import Any, Protocol

import numpy.typing as npt

from edge_rt.runtime.cache.kv_cache import KVCache, Reservation
from edge_rt.runtime.decode.accept import accept, accept_best
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar
from edge_rt.runtime.decode.draft import Accepted, Draft, Drafter
from edge_rt.runtime.decode.logprobs import LogProbs
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.outputs import Outputs

AcceptanceRule = Callable[[Draft, npt.NDArray[Any], Sampler, Collection[int]], Accepted]
"""An acceptance rule: which drafted tokens are accepted, and the token after them. Arguments and result as of
``accept``, the rule of all drafters that do not know the probability of what they draft.
"""


class Target(Protocol):
    """The model that verifies drafts."""

    def forward(
        self, token_ids: TokenIds[int], start: int, num_logits: int, *, parents: TokenIds[int] | None = None
    ) -> Outputs:
        """Compute tokens into cache rows ``start``...; the outputs are of the last ``num_logits`` (at least 1) tokens.

        Args:
            parents: for every token the earlier one that it follows, or -1 for the context's last; None for a chain.
        """


def prefill(
    sequence: Sequence,
    target: Target,
    cache: KVCache,
    chunk: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Compute the prompt in chunks; its last piece, at most ``chunk`` tokens, is left to the first decoding step.

    Args:
        chunk: most tokens of one pass; it bounds the memory of activations.
        on_progress: called with tokens computed so far and tokens of the prompt.
    """
    chunk = min(chunk, cache.largest_pass)
    while len(sequence.token_ids) - cache.length > chunk:
        pending = sequence.token_ids[cache.length : cache.length + cache.until_stop(chunk)]
        with cache.reserve(len(pending)) as rows:
            target.forward(pending, rows.start, 1)
            rows.commit(pending)
        if on_progress is not None:
            on_progress(cache.length, sequence.num_prompt_tokens)


class Decoding:
    """One sequence under way, in halves of a step, so that a pass can compute several of them.

    ``prepare`` drafts and reserves rows, somebody computes them, ``choose`` chooses tokens, ``commit`` keeps their
    rows. ``drop`` frees rows that are reserved; whatever is raised, it leaves the sequence as it was before the step.
    Behind a step the cache lacks the last token alone; behind a grammar, the last token chosen and those it forces.

    Args:
        sampler: chooses tokens, or computes the distributions to choose them from.
        logprobs: receives those of every token; None leaves them out.
        grammar: what the answer has to fit; ``rule`` is that of ``accept`` then.
        has_begun: whether the answer was begun elsewhere, and goes on here.
    """

    def __init__(
        self,
        sequence: Sequence,
        drafter: Drafter,
        cache: KVCache,
        sampler: Sampler,
        rule: AcceptanceRule = accept,
        logprobs: LogProbs | None = None,
        grammar: AnswerGrammar | None = None,
        *,
        has_begun: bool = False,
    ) -> None:
        self._has_begun = has_begun
        self.sequence = sequence
        self.cache = cache
        self.drafter = drafter
        self._sampler = sampler
        self._rule = rule
        self._logprobs = logprobs
        self._grammar = grammar
        self._rows: Reservation | None = None
        self._pending: list[int] = []
        self._draft = Draft()
        self._chosen: tuple[Accepted, Outputs] | None = None

    def begin(self) -> Accepted | None:
        """Start the answer; return the tokens that a grammar forces at its beginning, if there are any."""
        grammar, sequence, first = None if self._has_begun else self._grammar, self.sequence, None
        if grammar is not None and (forced := grammar.begin(self._sampler, sequence.room)):
            _append(sequence, forced, grammar)
            if self._logprobs is not None:
                self._logprobs.add_forced(forced)
            first = Accepted(forced, (), 0, tuple(range(len(forced))))
        self.drafter.begin(sequence)
        return first

    @property
    def num_pending(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.sequence.token_ids) - self.cache.length

    @property
    def room(self) -> int:
        """Tokens that may be drafted for a pass with all that are not computed yet."""
        pending = self.num_pending
        drafts = self.cache.most_drafts - (pending - self.cache.certain_of(pending))
        return min(self.sequence.room - 1, self.cache.largest_pass - pending, drafts)

    def prepare(self, most: int | None = None, draft: Draft | None = None) -> Part:
        """Reserve the rows of the next pass, and return it.

        Tokens that are not computed yet come first. Where these are more than ``most`` (None: as many as there are), or
        go beyond where states are kept, the pass has so many of them, asks for no logits and gives no token.

        Args:
            draft: what was drafted, where several sequences share the pass; None: the drafter is asked.
        """
        sequence, cache, grammar = self.sequence, self.cache, self._grammar
        pending = sequence.token_ids[cache.length :]
        piece = cache.until_stop(len(pending) if most is None else min(len(pending), most))
        if piece < len(pending):
            self._pending, self._draft = pending[:piece], Draft()
            return self._reserve(0, None)
        known, room, is_alone = len(pending), self.room, draft is None
        draft = (self.drafter.propose(sequence, room) if draft is None else draft).first(room)
        if grammar is not None:
            draft = grammar.pruned(draft)
        self._pending, self._draft = pending, draft
        parents = None if draft.is_chain else [*range(-1, known - 1), *(known + parent for parent in draft.parents)]
        part = self._reserve(len(draft) + 1, parents)
        if is_alone:
            self.drafter.pass_begins(draft)
        return part

    def _reserve(self, num_logits: int, parents: list[int] | None) -> Part:
        token_ids = [*self._pending, *self._draft.token_ids]
        self._rows = self.cache.reserve(len(token_ids), parents, certain=self.cache.certain_of(len(self._pending)))
        self._rows.__enter__()
        cache, start = self.cache, self._rows.start
        return Part(token_ids, start, num_logits, parents, None, cache.row_map, cache.states, cache.window_map)

    def choose(self, outputs: Outputs) -> None:
        """Choose the tokens that follow.

        Args:
            outputs: of the rows that asked for logits.

        Raises:
            InvalidGrammar: the grammar turned out to be too costly.
        """
        self.drafter.pass_ends()
        if len(self._pending) < self.num_pending:
            return
        draft, sampler, end_ids = self._draft, self._sampler, self.sequence.end_ids
        if self._grammar is not None or self._logprobs is not None:
            # Read before anything is chosen: a device may fail to give them, and the step is computed elsewhere then.
            _ = outputs.logits
        if self._grammar is not None:
            accepted = self._grammar.accept(draft, outputs, sampler, self.sequence.room)
        elif sampler.takes_best and outputs.top is not None:
            # Nothing is drawn: all rules are the same.
            accepted = accept_best(draft, outputs, outputs.top, sampler, end_ids)
        else:
            accepted = self._rule(draft, outputs.logits, sampler, end_ids)
        self._chosen = accepted, outputs

    def commit(self) -> Accepted | None:
        """Keep the rows of the accepted path, and return the tokens; None where the pass gave none."""
        assert self._rows is not None, "prepare was not called"
        if self._chosen is None:
            self._rows.commit(self._pending)
            self.drop()
            return None
        (accepted, outputs), known = self._chosen, len(self._pending)
        computed = accepted.token_ids[: len(accepted.path)]
        self._rows.commit([*self._pending, *computed], [*range(known), *(known + n for n in accepted.path)])
        self.drop()
        _append(self.sequence, accepted.token_ids, self._grammar)
        if self._logprobs is not None:
            self._logprobs.add(accepted, outputs)
        self.drafter.observe(self._draft, accepted, outputs)
        return accepted

    def drop(self) -> None:
        """Free the rows that are reserved, and forget what was chosen; does nothing where there is neither.

        Nothing is computed beside a pass any more; what that met is told by the next step, or the next text.
        """
        self.cache.end_pass()
        self._rows = self._chosen = None
        self.drafter.pass_ends(quietly=True)


def decode(decoding: Decoding, target: Target, *, chunk: int | None = None) -> Iterator[Accepted]:
    """Generate until the sequence is finished.

    Args:
        chunk: most tokens of one pass, if a grammar can force more of them than are drafted.

    Raises:
        Cancelled: a pass was stopped; sequence and cache are as they were after the previous step.
        InvalidGrammar: the grammar turned out to be too costly; the same holds.
    """
    sequence = decoding.sequence
    most = None if chunk is None else min(chunk, decoding.cache.largest_pass)
    if (first := decoding.begin()) is not None:
        yield first
    while not sequence.is_finished:
        try:
            part = decoding.prepare(most)
            decoding.choose(target.forward(part.token_ids, part.start, max(part.num_logits, 1), parents=part.parents))
            accepted = decoding.commit()
        finally:
            try:
                decoding.drop()
            except KeyboardInterrupt:
                # The second one, maybe: whoever is impatient leaves no pass under way.
                decoding.drop()
                raise
        if accepted is not None:
            yield accepted


def _append(sequence: Sequence, token_ids: TokenIds[int], grammar: AnswerGrammar | None) -> None:
    sequence.append(token_ids)
    if grammar is not None and grammar.is_whole:
        # Also where the tokens asked for leave no room for an end token.
        sequence.end_after(sequence.num_answer_tokens, "stop")
