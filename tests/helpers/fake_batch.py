"""A batch without a model: slots over the rows of one pool, of which passes and allocations may fail."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np

from edge_rt.runtime.admission import Admission, Wanted
from edge_rt.runtime.batch import Batch
from edge_rt.runtime.cache.row_pool import PooledCache, RowPool
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.detokenizer import TextStream
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.generation import Generation
from edge_rt.runtime.speculation.division import Division
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.stream import Outcome, Stream
from tests.helpers.fake_model import GARBAGE, VOCABULARY, FakeTarget, LetterDecoder
from tests.helpers.fake_sources import linear_costs


class FakeRunner:
    """Computes parts of several slots on the rows of one ``FakeTarget``; raises by index of the pass."""

    def __init__(self, caches, rows, fail_at):
        self.caches, self.target, self.fail_at = caches, FakeTarget(), fail_at
        self.target.rows = [GARBAGE] * rows
        self.passes = []

    def forward_many(self, parts):
        slots = [next(i for i, cache in enumerate(self.caches) if cache.row_map is part.row_map) for part in parts]
        self.passes.append([(slot, len(part.token_ids)) for slot, part in zip(slots, parts, strict=True)])
        if len(self.passes) - 1 in self.fail_at:
            raise self.fail_at[len(self.passes) - 1]
        outputs = []
        for part in parts:
            beyond = np.zeros(len(self.target.rows) - len(part.row_map), np.int32)
            self.target.row_map = np.concatenate([part.row_map, beyond])
            logits = max(part.num_logits, 1)
            outputs.append(self.target.forward(part.token_ids, part.start, logits, parents=part.parents))
            self.target.row_map = None
        return outputs


class FailingPool(RowPool):
    """Raises when blocks are taken for the n-th time."""

    def __init__(self, rows, fail_at, **options):
        super().__init__(rows, **options)
        self.fail_at, self.taken = fail_at, 0

    def take(self, count):
        self.taken += 1
        if self.taken - 1 == self.fail_at:
            raise MemoryError
        return super().take(count)


class FakeBatch:
    """A batch over a fake runner.

    Args:
        replaced_by: slots of what takes the runner's place once its device fails; None: nothing does.
    """

    def __init__(
        self, slots=3, *, rows=None, fail_at=None, fail_taking=None, most_rows=16, most_waiting=None, draft_max=8,
        replaced_by=None,
    ):  # fmt: skip
        self.capacity, self.most_rows, self.replaced_by = 64, most_rows, replaced_by
        self._open(slots, slots * self.capacity if rows is None else rows, fail_at, fail_taking)
        self.admission = Admission(self.caches, self.pool, most_waiting=most_waiting)
        self.division = Division(draft_library(), linear_costs, most_rows=most_rows, draft_max=draft_max)
        self.batch = Batch(
            self.admission,
            lambda _: nullcontext(self.runner),
            self.division,
            most_rows=most_rows,
            forget=lambda: None,
            instead=None if replaced_by is None else self._replace,
        )

    def _open(self, slots, rows, fail_at=None, fail_taking=None):
        self.pool = FailingPool(rows, fail_taking, most_resting=2 * slots)
        self.caches = [PooledCache(self.capacity, self.pool) for _ in range(slots)]
        self.runner = FakeRunner(self.caches, rows, fail_at or {})

    def _replace(self, error):
        slots, self.replaced_by = self.replaced_by, None
        if slots is None:
            return False
        self._open(slots, slots * self.capacity)
        self.batch.take_over(self.caches, self.pool, self.division, self.most_rows, str(error))
        return True

    def stream(self, prompt, **options):
        generation, wanted = self._generation(prompt, **options)
        return Stream(partial(self.batch.events, generation, wanted), CancelToken())

    def submit(self, prompt, **options):
        generation, wanted = self._generation(prompt, **options)
        return self.batch.submit(generation, Outcome(CancelToken(), None), wanted)

    def compute_all(self):
        self.batch.compute_until(lambda: not self.admission.has_work)

    def _generation(self, prompt, *, sampler=Sampler, drafter=None, grammar=None, **options):
        config = GenerationConfig(**({"temperature": 0.0, "max_tokens": 6} | options))
        sequence = Sequence(prompt, capacity=self.capacity, max_tokens=config.max_tokens, end_ids=())
        generation = Generation(
            sequence, None, self.caches[0], sampler(config, VOCABULARY, prompt), TextStream(LetterDecoder(), ()),
            chunk=8, called=0.0, wanted=None if grammar is None else (None, grammar),
        )  # fmt: skip
        return generation, Wanted(lambda slot, computes: (drafter or NullDrafter(), accept))
