"""Memory that passes of every number of rows share."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.runtime.forward.outputs import OutputMemory, Outputs, TopTokens, give_back, untouched
from tests.helpers.touched import touched_bytes


def arrays(outputs):
    return [outputs.logits, outputs.top.ids, outputs.top.logits, outputs.top.log_sum_exp]


def test_shapes_and_types():
    memory = OutputMemory(419, 8)
    memory.reserve(3)
    found = [(array.shape, array.dtype) for array in arrays(memory.first(3))]
    assert found == [((3, 419), np.float32), ((3, 8), np.int32), ((3, 8), np.float32), ((3,), np.float32)]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays(memory.first(3)))


def test_a_graph_that_does_not_look_for_top_tokens():
    memory = OutputMemory(419, 0)
    memory.reserve(3)
    assert memory.first(3).top is None


def test_hidden_states_of_the_same_rows():
    memory = OutputMemory(419, 8, 64)
    memory.reserve(5)
    hidden = memory.first(3).hidden
    assert (hidden.shape, hidden.dtype, hidden.flags.writeable) == ((3, 64), np.float32, True)
    assert np.shares_memory(hidden, memory.first(5).hidden)
    assert OutputMemory(419, 8).first(0).hidden is None


def test_outputs_of_every_size_begin_at_the_same_place():
    memory = OutputMemory(419, 8)
    memory.reserve(40)
    for one, many in zip(arrays(memory.first(1)), arrays(memory.first(40)), strict=True):
        many[:] = np.arange(40).reshape(40, *[1] * (many.ndim - 1))
        assert (one == 0).all()
        one[:] = 7
        assert (many[0] == 7).all()


def test_room_grows_and_what_was_handed_out_stays():
    memory = OutputMemory(419, 8)
    assert memory.reserve(5)
    before = memory.first(5)
    assert not memory.reserve(5)
    assert not memory.reserve(1)
    before.logits[:] = 3
    assert memory.reserve(1000)
    for old, new in zip(arrays(before), arrays(memory.first(5)), strict=True):
        assert not np.shares_memory(old, new)
    assert (before.logits == 3).all()
    assert not memory.reserve(1000)


def test_a_plan_has_so_many_rows_and_no_more():
    memory = OutputMemory(419, 8)
    memory.plan(5, 5)
    assert memory.most == 5
    assert memory.reserve(1)
    first = memory.first(5)
    assert first.logits.nbytes == 5 * 419 * 4
    assert not memory.reserve(5)
    with pytest.raises(MemoryBudgetExceeded, match=r"6 rows of 419 logits; the plan has 5\."):
        memory.reserve(6)
    assert np.shares_memory(first.logits, memory.first(3).logits)


def test_a_plan_without_a_budget_may_be_gone_beyond():
    memory = OutputMemory(419, 8)
    memory.plan(24, None)
    memory.reserve(1)
    assert not memory.reserve(24)
    assert memory.reserve(25)
    assert len(memory.first(25).logits) == 25


def test_rows_take_memory_only_when_written():
    memory = OutputMemory(50_000, 8)
    memory.reserve(1000)
    memory.first(1).logits[:] = 1
    whole = memory.first(1000).logits
    assert whole.nbytes == 200_000_000
    assert touched_bytes(memory.first(1).logits) <= touched_bytes(whole) < 1 << 20


@pytest.mark.parametrize("rows", [1 << 40, 1 << 62])
def test_more_than_there_is_address_space_for(rows):
    memory = OutputMemory(50_000, 8)
    memory.reserve(5)
    before = memory.first(5)
    with pytest.raises(MemoryBudgetExceeded, match="rows of 50000 logits"):
        memory.reserve(rows)
    assert np.shares_memory(before.logits, memory.first(5).logits)
    assert memory.reserve(17)


@pytest.mark.parametrize("view", ["whole", "part", "other type", "read only"])
def test_memory_that_is_given_back_is_zeros_again(view):
    array = untouched((64, 1 << 18), np.float32)
    array[:] = 7
    assert touched_bytes(array) == array.nbytes
    part = {"whole": array, "part": array[3:5, ::2], "other type": array.view(np.uint8), "read only": array[:]}[view]
    if view == "read only":
        part.flags.writeable = False
    give_back(part)
    assert touched_bytes(array) == 0
    # All of the mapping goes, not the view alone.
    assert not array.any()
    array[5] = 3
    assert (array[5] == 3).all()
    assert not array[6].any()


def test_only_memory_that_was_made_for_it_is_given_back():
    with pytest.raises(AssertionError):
        give_back(np.ones(10))


def test_memory_that_the_system_does_not_take_back_is_zeros_all_the_same():
    """Pages of a private mapping cannot be removed."""
    memory = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with pytest.raises(OSError, match="Invalid argument"):
        memory.madvise(mmap.MADV_REMOVE)
    array = np.frombuffer(memory, np.float32).reshape(128, -1)
    array[:] = 7
    give_back(array[5:7])
    assert not array.any()


def test_logits_of_a_device_are_copied_when_somebody_reads_them():
    here = np.zeros((2, 5), np.float32)
    top = TopTokens(np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32), np.zeros(2, np.float32))
    copies = []
    outputs = Outputs(here, top).fetched_by(lambda: copies.append(here.fill(7)))
    assert outputs.top is top
    assert copies == []
    assert (outputs.logits == 7).all()
    assert len(copies) == 1
