"""Sources in the native library: what followed earlier in a text, what was likely, what a reference text says.

They can be asked for children, one cursor at a time; ``core.py`` does not ask: whole trees are grown in the library.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from ctypes import c_int32
from typing import Any, Final

import numpy as np

from edge_rt.errors import ConfigError
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.library import MAX_GUESSES, DraftLibrary, GuessView, Handle, checked, int32s
from edge_rt.runtime.speculation.source import Guess

MAX_TOKENS: Final = 1 << 16
"""Tokens of texts that are held."""
MIN_TOKENS: Final = 64
# fmt: off
_TEXT_PRIORS: Final = (
    # Matches in the text: one row per bucket; columns: latest continuation (seen once, more often), second, third.
    0.22, 0.35, 0.07, 0.12, 0.04, 0.08,
    0.46, 0.70, 0.13, 0.17, 0.09, 0.08,
    0.60, 0.79, 0.14, 0.18, 0.09, 0.08,
    0.69, 0.83, 0.14, 0.18, 0.08, 0.09,
    0.76, 0.90, 0.16, 0.28, 0.02, 0.26,
    0.86, 0.95, 0.18, 0.20, 0.06, 0.15,
    0.97, 0.97, 0.22, 0.12, 0.04, 0.08,
)
# fmt: on
_OLDER: Final = 0.7
"""Factor for guesses from earlier texts, which are right less often than those from the current one."""
SUFFIX_PRIORS: Final = (*_TEXT_PRIORS, *(_OLDER * prior for prior in _TEXT_PRIORS))
"""Share of guesses that were right in 240 conversations, for every kind of guess from a text."""

MAX_ORDER: Final = 3
"""Longest context, in tokens."""
MAX_CONTEXTS: Final = 1 << 15
"""Contexts kept of each order; the oldest are dropped first."""
LEAST_PROBABILITY: Final = 0.03
"""Less likely tokens are not kept: they are not worth a row of a pass."""
_BOUNDS: Final = (LEAST_PROBABILITY, 0.06, 0.12, 0.2, 0.32, 0.5, 0.7, 0.9)
LOG_BOUNDS: Final = np.log(_BOUNDS).astype(np.float32)
"""Log probabilities where the levels of likely tokens begin."""
RANKS: Final = 3
"""Ranks of likely tokens that have kinds of their own; further ones count as the last."""
LEVELS: Final = len(_BOUNDS)
# Factor of a token's probability when its context of 1, 2 or 3 tokens occurs again.
_TRUST: Final = (0.45, 0.75, 0.9)

REFERENCE_PRIORS: Final = (0.47, 0.82, 0.78, 0.79, 0.86, 0.90, 0.93, 0.13, 0.14, 0.11, 0.10, 0.04, 0.07)
"""For 0, 1, 2, 3, 4-7, 8-15, 16 and more tokens copied; then for three edits right behind a mismatch, and later."""

_CURSOR: Final = c_int32 * 4

Rows = tuple[int | None, int | None, int | None, int]
"""Addresses of the most likely tokens, their logits, and the logarithms of sums; how many tokens a row has."""


class NativeSource:
    """A source in the library.

    Args:
        priors: for every kind the probability that a guess is right, before anything is learned.
    """

    def __init__(self, library: DraftLibrary, name: str, priors: Items[float], address: int | None) -> None:
        self.name = name
        self.num_kinds = len(priors)
        self.handle = Handle(address, library.source_close)
        self._library = library
        self._priors = tuple(priors)
        self._guesses = (GuessView * MAX_GUESSES)()

    def prior(self, kind: int) -> float:
        """Return the probability that a guess of this kind is right, before anything is learned."""
        return self._priors[kind]

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation."""
        _held, address, count = int32s(token_ids)
        checked(self._library.source_begin(self.handle.address, address, count))

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""
        _held, address, count = int32s(token_ids)
        checked(self._library.source_extend(self.handle.address, address, count))

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn from a step, before its tokens are added."""
        del accepted
        _tokens, tokens, nodes = int32s(draft.token_ids)
        _parents, parents, _ = int32s(draft.parents)
        _known, known, known_count = int32s(context)
        _kept, rows = likely(outputs.top)
        checked(self._library.source_observe(self.handle.address, tokens, parents, nodes, known, known_count, *rows))

    def root(self) -> Any | None:
        """Return the cursor at the end of the known tokens; None if nothing can be guessed."""
        cursor = _CURSOR()
        return tuple(cursor) if checked(self._library.source_root(self.handle.address, cursor)) else None

    def children(self, cursor: Any) -> Items[Guess]:
        """Return the tokens that may follow, the most promising first; they differ."""
        found = self._guesses
        count = checked(self._library.source_children(self.handle.address, _CURSOR(*cursor), found))
        return [Guess(guess.token, guess.kind, tuple(guess.cursor)) for guess in found[:count]]

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        address = self.handle.address
        return checked(self._library.source_bytes(address)) if address else 0


class NativeSuffixSource(NativeSource):
    """Guesses what followed earlier occurrences of the text's longest suffix (SAM-Decoding, Hu et al. 2024).

    A kind is (this text or an earlier one; bucket of the match's length; rank; whether the guess followed once or more
    often). Texts of earlier turns and conversations are used as well, until ``max_tokens`` are held; then the automaton
    is built again from the later half.
    """

    def __init__(self, library: DraftLibrary, *, max_tokens: int = MAX_TOKENS) -> None:
        _require_room(max_tokens)
        super().__init__(library, "suffix", SUFFIX_PRIORS, library.suffix_open(max_tokens))

    def limit(self, max_tokens: int) -> None:
        """Hold at most ``max_tokens`` tokens from now on; if there are more, the oldest are dropped."""
        _require_room(max_tokens)
        checked(self._library.suffix_limit(self.handle.address, max_tokens))

    @property
    def num_tokens(self) -> int:
        """Tokens held, separators included."""
        return checked(self._library.suffix_size(self.handle.address))


class NativeRecyclingSource(NativeSource):
    """Drafts again what the model found likely the last time it saw the same context.

    Every pass computes the likely next tokens of every row, rows of rejected draft tokens included. They are kept per
    context of 1 to ``max_order`` tokens (Luo et al., "Turning Trash into Treasure"; the longer keys of STAND, Song et
    al.).

    Args:
        max_contexts: contexts kept of each order; those not seen for longest are dropped.
        beside: a source of another text, of the same order, whose contexts are these as well; None: it has its own.
    """

    def __init__(
        self,
        library: DraftLibrary,
        *,
        max_order: int = MAX_ORDER,
        max_contexts: int = MAX_CONTEXTS,
        beside: NativeRecyclingSource | None = None,
    ) -> None:
        priors = [recycling_prior(kind) for kind in range(recycling_kinds(max_order))]
        if beside is not None:
            super().__init__(library, "recycling", priors, library.recycling_beside(beside.handle.address))
            return
        least, *bounds = LOG_BOUNDS.tolist()
        held = array("f", bounds)
        address = library.recycling_open(max_order, max_contexts, least, held.buffer_info()[0])
        super().__init__(library, "recycling", priors, address)


def recycling_kinds(max_order: int) -> int:
    """Return the number of kinds of guesses after contexts of up to ``max_order`` tokens."""
    return max_order * RANKS * LEVELS


def recycling_prior(kind: int) -> float:
    """Return the probability that the model gave, reduced for shorter contexts, which are wrong more often."""
    order, level = kind // (RANKS * LEVELS), kind % LEVELS
    bounds = (*_BOUNDS, 1.0)
    return _TRUST[min(order, len(_TRUST) - 1)] * (bounds[level] + bounds[level + 1]) / 2


class NativeReferenceSource(NativeSource):
    """Follows a text that the answer mostly repeats (aggressive decoding, Ge et al. 2022).

    After a mismatch it goes on where the last tokens of the answer occur in the text, at least two, and until then
    assumes a small edit.
    """

    def __init__(self, library: DraftLibrary, token_ids: Items[int]) -> None:
        require_reference(token_ids)
        _held, address, count = int32s(token_ids)
        super().__init__(library, "reference", REFERENCE_PRIORS, library.reference_open(address, count))


def require_reference(token_ids: Items[int]) -> None:
    """Refuse an empty reference text."""
    if not token_ids:
        raise ConfigError("The reference text is empty.", "It has 0 tokens.", "Give a text, or none at all.")


def likely(top: TopTokens | None) -> tuple[object, Rows]:
    """Return the most likely tokens of a pass as the library takes them, behind what must be kept meanwhile."""
    if top is None:
        return None, (None, None, None, 0)
    ids = np.ascontiguousarray(top.ids, np.int32)
    logits, sums = np.ascontiguousarray(top.logits, np.float32), np.ascontiguousarray(top.log_sum_exp, np.float32)
    return (ids, logits, sums), (ids.ctypes.data, logits.ctypes.data, sums.ctypes.data, ids.shape[1])


def _require_room(max_tokens: int) -> None:
    if max_tokens < MIN_TOKENS:
        raise ConfigError("The automaton is too small.", f"{max_tokens} tokens.", f"Give at least {MIN_TOKENS}.")
