"""Runs a traced graph over a cache of its own, for the checks of an export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.export.check.compare import CheckResult, compare
from edge_rt.export.traced.rewrite import new_name, past_name
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.decoder import Model

Array = npt.NDArray[Any]


class TracedPasses:
    """A graph of the op profile ``traced``, opened, with a cache; lowering ``length`` rolls back."""

    def __init__(self, graph: Path, model: Model, capacity: int) -> None:
        self._session = Session(graph, profile="traced")
        self._vocab_size = model.vocab_size
        shape = (capacity, model.num_kv_heads, model.head_dim)
        keys = [(layer, kind) for layer in range(model.num_layers) for kind in ("key", "value")]
        self._caches = {key: np.zeros(shape, np.float32) for key in keys}
        self.length = 0

    def run(self, token_ids: Sequence[int]) -> Array:
        """Compute tokens behind those in the cache; return the logits of all of them, ``[tokens, vocabulary]``."""
        rows = len(token_ids)
        logits = np.empty((rows, self._vocab_size), np.float32)
        binding = self._session.binding()
        binding.bind_input("input_ids", np.asarray(token_ids, np.int64))
        binding.bind_input("logit_rows", np.arange(rows, dtype=np.int64))
        binding.bind_output("logits", logits)
        for key, cache in self._caches.items():
            binding.bind_input(past_name(*key), cache[: self.length])
            binding.bind_output(new_name(*key), cache[self.length : self.length + rows])
        binding.run(StopSwitch())
        self.length += rows
        return logits

    @contextmanager
    def from_here(self) -> Iterator[None]:
        """Context manager: what is computed inside is rolled back at its end."""
        length = self.length
        try:
            yield
        finally:
            self.length = length

    def newest(self, rows: int) -> bytes:
        """Return the bytes of the last rows of all caches."""
        return b"".join(cache[self.length - rows : self.length].tobytes() for cache in self._caches.values())


MAX_ERROR: Final = 1e-4
"""Largest accepted difference of a logit, relative to the largest of all logits."""
_FIRST_CHUNK: Final = 13
_CHUNKS: Final = (1, 5, 1, 1, 8, 2, 1, 3)
"""Rows of the passes behind the first chunk, again and again: single and several, each behind the other."""
PREFIXES: Final = (0, 1, 6, 33, 150, 530)
"""Tokens before the passes whose bits are compared."""
ROWS: Final = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24)
"""Rows of these passes."""


def check_logits(passes: TracedPasses, token_ids: Sequence[int], reference: Array) -> CheckResult:
    """Compare the graph's logits, in chunks and in steps, with those of transformers, ``[tokens, vocabulary]``."""
    passes.length = 0
    sizes = [min(_FIRST_CHUNK, len(token_ids))]
    while sum(sizes) < len(token_ids):
        sizes.append(min(_CHUNKS[(len(sizes) - 1) % len(_CHUNKS)], len(token_ids) - sum(sizes)))
    ends = np.cumsum(sizes).tolist()
    found = np.concatenate([passes.run(token_ids[end - size : end]) for end, size in zip(ends, sizes, strict=True)])
    error = float(np.abs(found - reference).max() / max(float(np.abs(reference).max()), 1e-12))
    if not error <= MAX_ERROR:
        row = int(np.abs(found - reference).max(axis=-1).argmax())
        raise InvalidPackage(
            "The traced graph does not compute what transformers computes, so it was not published.",
            f"Largest difference of a logit: {error:.3g} of the largest, at token {row} of {len(token_ids)}; "
            f"limit {MAX_ERROR:.3g}.",
            "Report this with the name of the checkpoint.",
        )
    return compare(reference, found, "float")


def exact_rows(passes: TracedPasses, vocab_size: int, capacity: int) -> int:
    """Return the rows of the largest pass with the bits of single rows, in logits, keys and values, else 0."""
    compared = 0
    for prefix in PREFIXES:
        passes.length = 0
        room = capacity - prefix
        sizes = [rows for rows in ROWS if rows <= room]
        if not sizes:
            break
        ids = [(11 + 7919 * i) % vocab_size for i in range(prefix + sizes[-1])]
        if prefix:
            passes.run(ids[:prefix])
        with passes.from_here():
            logits = np.concatenate([passes.run([token]) for token in ids[prefix:]])
            single = passes.newest(sizes[-1])
        for rows in sizes:
            with passes.from_here():
                together = passes.run(ids[prefix : prefix + rows])
                if together.tobytes() != logits[:rows].tobytes():
                    return 0
                if rows == sizes[-1] and passes.newest(rows) != single:
                    return 0
        compared = max(compared, sizes[-1])
    return compared


def check_capacity(context_length: int) -> int:
    """Return the tokens of a cache that is large enough for both checks."""
    return min(context_length, PREFIXES[-1] + ROWS[-1])
