"""THE decode loop: draft, verify, accept, commit. Plain decoding is the same loop with an empty draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence as TokenIds
from typing import Any, Protocol

import numpy.typing as npt

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.accept import accept, accept_best
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar
from edge_rt.runtime.decode.draft import Accepted, Draft, Drafter
from edge_rt.runtime.decode.logprobs import LogProbs
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
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
        pending = sequence.token_ids[cache.length : cache.length + chunk]
        with cache.reserve(chunk) as rows:
            target.forward(pending, rows.start, 1)
            rows.commit(pending)
        if on_progress is not None:
            on_progress(cache.length, sequence.num_prompt_tokens)


def decode(
    sequence: Sequence,
    drafter: Drafter,
    target: Target,
    cache: KVCache,
    sampler: Sampler,
    rule: AcceptanceRule = accept,
    logprobs: LogProbs | None = None,
    grammar: AnswerGrammar | None = None,
    *,
    chunk: int | None = None,
) -> Iterator[Accepted]:
    """Generate until the sequence is finished.

    At every yield the cache lacks the last token alone; behind a grammar, the last token chosen and those it forces.

    Args:
        sampler: chooses tokens, or computes the distributions to choose them from.
        logprobs: receives those of every token; None leaves them out.
        grammar: what the answer has to fit; ``rule`` is that of ``accept`` then.
        chunk: most tokens of one pass, if a grammar can force more of them than are drafted.

    Raises:
        Cancelled: a pass was stopped; sequence and cache are as they were after the previous step.
        InvalidGrammar: the grammar turned out to be too costly; the same holds.
    """
    if grammar is not None and (forced := grammar.begin(sampler, sequence.room)):
        _append(sequence, forced, grammar)
        if logprobs is not None:
            logprobs.add_forced(forced)
        yield Accepted(forced, (), 0, tuple(range(len(forced))))
    drafter.begin(sequence)
    while not sequence.is_finished:
        if grammar is not None and chunk is not None:
            prefill(sequence, target, cache, chunk)
        pending = sequence.token_ids[cache.length :]
        known = len(pending)
        limit = min(sequence.room - 1, cache.largest_pass - known)
        draft = drafter.propose(sequence, limit).first(limit)
        if grammar is not None:
            draft = grammar.pruned(draft)
        parents = None if draft.is_chain else [*range(-1, known - 1), *(known + parent for parent in draft.parents)]
        with cache.reserve(known + len(draft), parents) as rows:
            outputs = target.forward([*pending, *draft.token_ids], rows.start, len(draft) + 1, parents=parents)
            if grammar is not None:
                accepted = grammar.accept(draft, outputs, sampler, sequence.room)
            elif sampler.takes_best and outputs.top is not None:
                # Nothing is drawn: all rules are the same.
                accepted = accept_best(draft, outputs, outputs.top, sampler, sequence.end_ids)
            else:
                accepted = rule(draft, outputs.logits, sampler, sequence.end_ids)
            computed = accepted.token_ids[: len(accepted.path)]
            rows.commit([*pending, *computed], [*range(known), *(known + n for n in accepted.path)])
        _append(sequence, accepted.token_ids, grammar)
        if logprobs is not None:
            logprobs.add(accepted, outputs)
        drafter.observe(draft, accepted, outputs)
        yield accepted


def _append(sequence: Sequence, token_ids: TokenIds[int], grammar: AnswerGrammar | None) -> None:
    sequence.append(token_ids)
    if grammar is not None and grammar.is_whole:
        # Also where the tokens asked for leave no room for an end token.
        sequence.end_after(sequence.num_answer_tokens, "stop")
