"""One request on a model that others use afterwards."""

from __future__ import annotations

from contextlib import contextmanager

from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.generation import Held
from tests.helpers.fake_model import Run


def test_a_result_has_the_figures_of_its_own_generation():
    run = Run([1, 2, 3], max_tokens=4)
    run.cache.row_bytes = 10

    @contextmanager
    def hold(_):
        yield Held(run.target, NullDrafter())
        # The next generation takes the cache as soon as the model is free.
        run.cache.truncate(0)

    run._generation._hold = hold
    result = run.result()
    assert result.usage.total_tokens == 7
    assert result.memory.kv_bytes == 6 * 10
