"""A model that holds a budget computes every pass that a prompt can end with, in a long context."""

from __future__ import annotations

import pytest

import edge_rt
from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.export import export_model
from edge_rt.memory.activations import allocated_bytes
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.native_profile import require_native

CTX = 32768


@pytest.fixture(scope="module")
def long_package(tmp_path_factory):
    """A package of one layer and a long context; nobody may change it."""
    require_native()
    folder = tmp_path_factory.mktemp("long")
    write_llama_gguf(folder / "long.gguf", context=CTX, layers=1)
    export_model(folder / "long.gguf", folder / "package", profile="native")
    return folder / "package"


@pytest.mark.parametrize("chunk", [17, 64, 128])
def test_the_last_piece_of_a_prompt_may_have_any_number_of_rows(long_package, chunk):
    asked = {"ctx": CTX, "kv": "f32", "spec": "off", "prefill_chunk": chunk}
    budget = edge_rt.plan(long_package, memory="8GiB", **asked).minimum_bytes + (16 << 20)
    with edge_rt.load(long_package, memory=budget, **asked) as model:
        assert allocated_bytes(model.plan.shape, 16, CTX) > allocated_bytes(model.plan.shape, chunk, CTX)
        with model.passes() as (runner, cache):
            for rows in dict.fromkeys([*range(1, 21), chunk]):
                if rows > chunk:
                    continue
                cache.pretend(CTX - rows)
                with cache.reserve(rows) as slots:
                    assert runner.forward([5] * rows, slots.start, 1).logits.shape[0] == 1
            cache.truncate(0)


def test_a_pass_beyond_the_plan_is_still_refused(long_package):
    asked = {"ctx": CTX, "kv": "f32", "spec": "off", "prefill_chunk": 17}
    with (
        edge_rt.load(long_package, memory="2GiB", **asked) as model,
        model.passes() as (runner, _),
        pytest.raises(MemoryBudgetExceeded),
    ):
        runner.forward([5] * 8192, 0, 1)
