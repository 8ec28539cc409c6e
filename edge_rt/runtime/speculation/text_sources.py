"""Sources in the native library: the same guesses as those of the Python classes, in a hundredth of the time.

They can be asked like any other source, one cursor at a time. ``speculation/native_core.py`` does not ask: there whole
trees are grown inside the library.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from ctypes import c_int32
from typing import Any, Final

import numpy as np

from edge_rt.errors import ConfigError
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.library import MAX_GUESSES, DraftLibrary, GuessView, Handle, checked, int32s
from edge_rt.runtime.speculation.reference import copies as reference, recycling, suffix
from edge_rt.runtime.speculation.source import Guess

_CURSOR: Final = c_int32 * 4

Rows = tuple[int | None, int | None, int | None, int]
"""Addresses of the most likely tokens, their logits, and the logarithms of sums; how many tokens a row has."""


class NativeSource:
    """A source in the library.

    Args:
        priors: for every kind the probability that a guess is right, before anything is learned.
        address: what the library's function that opens it returned.

    Attributes:
        name, num_kinds: see ``Source``.
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
        _kept, rows = likely(outputs)
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
        return checked(self._library.source_bytes(self.handle.address))


class NativeSuffixSource(NativeSource):
    """``SuffixSource`` without a corpus.

    Args:
        max_tokens: most tokens held, of all texts together.
    """

    def __init__(self, library: DraftLibrary, *, max_tokens: int = suffix.MAX_TOKENS) -> None:
        _require_room(max_tokens)
        super().__init__(library, suffix.SuffixSource.name, suffix.TEXT_PRIORS, library.suffix_open(max_tokens))

    def limit(self, max_tokens: int) -> None:
        """Hold at most ``max_tokens`` tokens from now on; if there are more, the oldest are dropped."""
        _require_room(max_tokens)
        checked(self._library.suffix_limit(self.handle.address, max_tokens))

    @property
    def num_tokens(self) -> int:
        """Tokens held, separators included."""
        return checked(self._library.suffix_size(self.handle.address))


class NativeRecyclingSource(NativeSource):
    """``RecyclingSource``; arguments as there."""

    def __init__(
        self,
        library: DraftLibrary,
        *,
        max_order: int = recycling.MAX_ORDER,
        max_contexts: int = recycling.MAX_CONTEXTS,
    ) -> None:
        priors = [recycling.prior(kind) for kind in range(recycling.num_kinds(max_order))]
        least, *bounds = recycling.LOG_BOUNDS.tolist()
        held = array("f", bounds)
        address = library.recycling_open(max_order, max_contexts, least, held.buffer_info()[0])
        super().__init__(library, recycling.RecyclingSource.name, priors, address)


class NativeReferenceSource(NativeSource):
    """``ReferenceSource``; arguments and errors as there."""

    def __init__(self, library: DraftLibrary, token_ids: Items[int]) -> None:
        reference.require_text(token_ids)
        _held, address, count = int32s(token_ids)
        super().__init__(
            library, reference.ReferenceSource.name, reference.PRIORS, library.reference_open(address, count)
        )


def likely(outputs: Outputs) -> tuple[object, Rows]:
    """Return the most likely tokens of a pass as the library takes them, behind what must be kept meanwhile."""
    top = outputs.top
    if top is None:
        return None, (None, None, None, 0)
    ids = np.ascontiguousarray(top.ids, np.int32)
    logits, sums = np.ascontiguousarray(top.logits, np.float32), np.ascontiguousarray(top.log_sum_exp, np.float32)
    return (ids, logits, sums), (ids.ctypes.data, logits.ctypes.data, sums.ctypes.data, ids.shape[1])


def _require_room(max_tokens: int) -> None:
    if max_tokens < suffix.MIN_TOKENS:
        raise ConfigError("The automaton is too small.", f"{max_tokens} tokens.", f"Give at least {suffix.MIN_TOKENS}.")
