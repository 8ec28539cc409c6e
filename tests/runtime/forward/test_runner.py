from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import Cancelled, UnsupportedModel
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.runtime.forward.io_binding_portable import PortableIOBinding
from edge_rt.runtime.forward.runner import MAX_KEPT_SHAPES, ModelRunner
from tests.helpers.graphs import Built

TOKEN_IDS = [(5 + 41 * i) % 419 for i in range(50)]
SAME = 1e-4
"""Float arithmetic in another order; relative to the deviation of the logits."""


@pytest.fixture(scope="module")
def built(small_gguf, tmp_path_factory):
    return Built(small_gguf, tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def whole(built):
    return built.run(TOKEN_IDS)


@pytest.fixture
def runner(built):
    switch = StopSwitch()
    session = Session(built.graph, threads=pool_size())
    runner = ModelRunner(session, PortableIOBinding(built.used, 64, "f32"), switch)
    runner.switch = switch
    return runner


def close_to(found, expected):
    return np.abs(found - expected).max() < SAME * expected.std()


@pytest.mark.parametrize("chunk", [1, 3, 16, 49, 50])
def test_chunks_give_the_logits_of_the_whole(runner, whole, chunk):
    for start in range(0, len(TOKEN_IDS), chunk):
        ids = TOKEN_IDS[start : start + chunk]
        logits = runner.forward(ids, start, len(ids)).logits
        assert logits.shape == (len(ids), 419)
        assert close_to(logits, whole[start : start + len(ids)])


def test_only_the_last_rows_want_logits(runner, whole):
    logits = runner.forward(TOKEN_IDS[:20], 0, 3).logits
    assert logits.shape == (3, 419)
    assert close_to(logits, whole[17:20])


def test_any_rows_may_want_logits(runner, whole):
    logits = runner.forward(TOKEN_IDS[:20], 0, 3, logit_rows=[17, 0, 9]).logits
    assert close_to(logits, whole[[17, 0, 9]])
    assert close_to(runner.forward(TOKEN_IDS[:20], 0, 3).logits, whole[17:20])


def test_a_chain_may_be_spelt_out_and_a_tree_is_refused(runner, whole):
    assert close_to(runner.forward(TOKEN_IDS[:3], 0, 3, parents=[-1, 0, 1]).logits, whole[:3])
    with pytest.raises(UnsupportedModel, match="in a chain only"):
        runner.forward(TOKEN_IDS[:3], 0, 3, parents=[-1, 0, 0])


def test_rows_written_again_count_only_as_written_last(runner, whole):
    """Rolling back is a smaller start, nothing else."""
    runner.forward(TOKEN_IDS[:10], 0, 1)
    runner.forward([7, 7, 7, 7, 7], 10, 1)
    assert close_to(runner.forward(TOKEN_IDS[10:20], 10, 10).logits, whole[10:20])
    assert close_to(runner.forward(TOKEN_IDS[5:12], 5, 7).logits, whole[5:12])


def test_the_same_pass_again_gives_the_same_bits(runner):
    first = runner.forward(TOKEN_IDS[:20], 0, 20).logits.copy()
    runner.forward(TOKEN_IDS[20:30], 20, 1)
    np.testing.assert_array_equal(runner.forward(TOKEN_IDS[:20], 0, 20).logits, first)


def test_passes_of_every_shape_write_to_the_same_memory(runner, whole):
    one = runner.forward(TOKEN_IDS[:1], 0, 1).logits
    assert close_to(one, whole[:1])
    three = runner.forward(TOKEN_IDS[1:4], 1, 3)
    assert three.top is None
    np.testing.assert_array_equal(one, three.logits[:1])
    assert close_to(one, whole[1:2])


def test_more_rows_than_there_is_room_for(runner, whole):
    """Room for more rows is other memory: what was returned before stays, and nothing is bound to it any more."""
    few = runner.forward(TOKEN_IDS[:1], 0, 1).logits
    many = runner.forward(TOKEN_IDS, 0, 50).logits
    assert len(runner._passes) == 1
    assert close_to(few, whole[:1])
    assert close_to(runner.forward(TOKEN_IDS[:1], 0, 1).logits, whole[:1])
    runner.forward(TOKEN_IDS[:2], 0, 1)
    assert close_to(many[:1], whole[1:2])
    assert close_to(few, whole[:1])


def test_the_cache_is_written_in_place(runner):
    keys = runner._io_binding.keys[1]
    assert not keys.any()
    runner.forward(TOKEN_IDS[:5], 0, 1)
    assert keys[0, :, :5].any(axis=-1).all()
    assert not keys[0, :, 5:].any()


def test_more_shapes_than_are_kept(runner, whole):
    for wanted in (1, 2):
        for count in range(2, len(TOKEN_IDS)):
            runner.forward(TOKEN_IDS[:count], 0, wanted)
    assert len(runner._passes) == MAX_KEPT_SHAPES
    assert close_to(runner.forward(TOKEN_IDS[:1], 0, 1).logits, whole[:1])


def test_stopped(runner, whole):
    runner.switch.stop()
    with pytest.raises(Cancelled):
        runner.forward(TOKEN_IDS[:5], 0, 1)
    runner.switch.reset()
    assert close_to(runner.forward(TOKEN_IDS[:5], 0, 5).logits, whole[:5])


def test_closed(runner):
    runner.forward(TOKEN_IDS[:5], 0, 1)
    runner.close()
    runner.close()
    for count in (5, 6):
        with pytest.raises(Cancelled, match="closed"):
            runner.forward(TOKEN_IDS[:count], 0, 1)
