"""DraftHead against numpy, and its promises: exact rows, trees of fewer nodes are beginnings of larger ones."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.weights.tile_formats import TILE_FORMATS
from edge_rt.package.op_list import MAX_HEAD_BLOCKS
from tests.ops.draft_head_reference import random_head, step, tree
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

# Rows of nested codes cannot be gathered, so no head is made of them.
FORMATS = tuple(name for name, form in TILE_FORMATS.items() if not form.is_nested)
TOLERANCE = 2e-3
"""Of a log probability: a code next to the middle between two integers may be rounded to the other one."""


def run(head, **options):
    return SingleOp("DraftHead", head.attributes, head.inputs, **options)(**head.inputs)


def nodes_of(found):
    ids, parents, depths, log_probs, count = found
    return list(zip(*(part[: count[0]].tolist() for part in (ids, parents, depths, log_probs)), strict=True))


def limited(head, nodes, width, depth):
    changed = head.more()
    changed.inputs["limits"] = np.array([nodes, width, depth], np.int32)
    return changed


def totals_of(nodes):
    totals = []
    for _, parent, _, log_prob in nodes:
        totals.append(log_prob + (totals[parent] if parent >= 0 else 0))
    return totals


def check_tree(found, head):
    """Compare with the reference; return the least gap between totals, which says how sure the order is."""
    wanted, gap = tree(head)
    got = nodes_of(found)
    np.testing.assert_allclose(totals_of(got), totals_of(wanted), atol=TOLERANCE * max(n[2] for n in wanted), rtol=0)
    if gap > 4 * TOLERANCE:
        assert [n[:3] for n in got] == [n[:3] for n in wanted]
    return gap


@pytest.mark.parametrize("form", FORMATS)
def test_a_step_of_every_format(form):
    head = limited(random_head(np.random.default_rng(1), formats=(form,) * 5), 8, 8, 1)
    got = nodes_of(run(head))
    _, wanted = step(head, head.inputs["hidden"][0], int(head.inputs["token"][0]))
    np.testing.assert_allclose([n[3] for n in got], [wanted[n[0]] for n in got], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose([n[3] for n in got], sorted(wanted.values(), reverse=True)[:8], atol=TOLERANCE, rtol=0)
    assert [n[1:3] for n in got] == [(-1, 1)] * 8


@pytest.mark.parametrize("blocks", range(1, MAX_HEAD_BLOCKS + 1))
def test_blocks(blocks):
    head = limited(random_head(np.random.default_rng(2), blocks=blocks), 6, 6, 1)
    got = nodes_of(run(head))
    _, wanted = step(head, head.inputs["hidden"][0], int(head.inputs["token"][0]))
    np.testing.assert_allclose([n[3] for n in got], sorted(wanted.values(), reverse=True)[:6], atol=TOLERANCE, rtol=0)


def test_trees():
    gaps = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        head = limited(random_head(rng), *rng.integers(1, 5, 3))
        gaps.append(check_tree(run(head), head))
    # In enough of them there is no doubt about the order.
    assert sum(gap > 4 * TOLERANCE for gap in gaps) > 40


@pytest.mark.parametrize("limits", [(32, 12, 3), (32, 64, 2), (30, 2, 8), (32, 5, 5)])
def test_trees_with_more_nodes_at_a_depth_than_run_together(limits):
    for seed in range(5):
        head = limited(random_head(np.random.default_rng(seed)), *limits)
        check_tree(run(head), head)


def test_all_tokens():
    """With as many guesses as rows, and more, every token is found once, and the probabilities add up to 1."""
    for width in (46, 64):
        head = limited(random_head(np.random.default_rng(3), nodes=64), 64, width, 1)
        got = nodes_of(run(head))
        rows = len(head.inputs["head_ids"]) + len(head.inputs["more_ids"])
        assert sorted(n[0] for n in got) == sorted(
            [*head.inputs["head_ids"].tolist(), *head.inputs["more_ids"].tolist()]
        )
        assert len(got) == rows == 46
        np.testing.assert_allclose(np.exp([n[3] for n in got]).sum(), 1, rtol=1e-5)


def test_fewer_nodes_are_the_beginning_of_more():
    head = random_head(np.random.default_rng(4), nodes=64)
    whole = nodes_of(run(limited(head, 64, 6, 4)))
    assert len(whole) == 64
    for nodes in (1, 2, 3, 7, 8, 9, 20, 63):
        assert nodes_of(run(limited(head, nodes, 6, 4))) == whole[:nodes]


def test_what_runs_beside_a_node_does_not_show():
    """Its bits are the same in trees of all sizes: with other rows in the step, and alone in it."""
    head = random_head(np.random.default_rng(5), nodes=128)
    known = {}
    met = 0
    for limits in [(128, 8, 3), (64, 1, 3), (2, 2, 3), (5, 3, 3), (128, 12, 4), (9, 2, 8)]:
        paths = []
        for token, parent, _, log_prob in nodes_of(run(limited(head, *limits))):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
            met += paths[-1] in known
            assert known.setdefault(paths[-1], log_prob) == log_prob
    assert met > 60


def test_threads_and_instruction_sets_do_not_show():
    for seed, formats in enumerate([None, ("w8", "w4k", "w6k", "w5k", "w6k"), ("f16", "f32", "bf16", "f16", "w8")]):
        head = limited(random_head(np.random.default_rng(seed), blocks=2, formats=formats), 32, 5, 3)
        wanted = run(head)
        for options in ({"threads": 2}, {"threads": 3}, *({"isa": isa} for isa in ISAS)):
            for found, want in zip(run(head, **options), wanted, strict=True):
                assert found.tobytes() == want.tobytes(), (seed, options)


def test_rows_may_be_in_either_head():
    """Which of the two matrices a token's row is in changes no more than the order of a sum."""
    head = limited(random_head(np.random.default_rng(6)), 16, 4, 2)
    ids = np.sort(np.concatenate([head.inputs["head_ids"], head.inputs["more_ids"]]))
    wanted = nodes_of(run(head.more(ids, np.zeros(0, np.int32))))
    for count in (1, 15, 16, 17, 30):
        found = nodes_of(run(head.more(ids[:count], ids[count:])))
        assert [n[:3] for n in found] == [n[:3] for n in wanted]
        np.testing.assert_allclose([n[3] for n in found], [n[3] for n in wanted], rtol=0, atol=1e-5)
    alone = head.more(ids)
    del alone.inputs["more_head"], alone.inputs["more_ids"]
    assert nodes_of(run(alone)) == wanted


def test_equal_logits_go_to_the_smaller_id():
    head = limited(
        random_head(np.random.default_rng(7), vocabulary=48, formats=("w8", "w4m", "w4m", "w4m", "f32")), 9, 9, 1
    )
    equal = head.more(np.array([5, 9, 30]), np.array([2, 7, 40]))
    for name in ("head", "more_head"):
        equal.inputs[name][:] = 0
    found = nodes_of(run(equal))
    assert [n[0] for n in found] == [2, 5, 7, 9, 30, 40]
    np.testing.assert_allclose([n[3] for n in found], np.log(1 / 6), rtol=1e-6)


def test_places_behind_the_tree():
    head = limited(random_head(np.random.default_rng(8), nodes=32), 3, 2, 1)
    ids, parents, depths, log_probs, count = run(head)
    assert count.tolist() == [2]
    assert ids[2:].tolist() == parents[2:].tolist() == [-1] * 30
    assert not depths[2:].any()
    assert not log_probs[2:].any()


def test_a_head_that_computes_no_number_guesses_nothing():
    head = random_head(np.random.default_rng(9))
    head.inputs["output_norm"] = np.full_like(head.inputs["output_norm"], np.nan)
    assert nodes_of(run(head)) == []


def refusal(head):
    with pytest.raises(Exception, match="DraftHead: ") as caught:
        run(head)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("token", [-1], "token is -1, must be 0 to 79"),
        ("token", [80], "token is 80"),
        ("limits", [0, 4, 3], "nodes, is 0, must be 1 to 32"),
        ("limits", [33, 4, 3], "nodes, is 33"),
        ("limits", [8, 65, 3], "width, is 65, must be 1 to 64"),
        ("limits", [8, -1, 3], "width, is -1"),
        ("limits", [8, 4, 9], "depth, is 9, must be 1 to 8"),
        ("limits", [8, 4], "limits"),
    ],
)
def test_wrong_values_are_errors(name, value, words):
    head = random_head(np.random.default_rng(10))
    head.inputs[name] = np.array(value, head.inputs[name].dtype)
    assert words in refusal(head)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_an_error(value):
    head = random_head(np.random.default_rng(11))
    head.inputs["hidden"][0, 17] = value
    assert "hidden[17] is not finite" in refusal(head)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, -1, "head_ids[0] is -1"),
        (3, 6, "head_ids[3] is 6"),
        (26, 80, "head_ids[26] is 80, must be above the one before it, and 0 to 79"),
    ],
)
def test_ids_that_do_not_ascend_are_errors(place, value, words):
    head = random_head(np.random.default_rng(12))
    head.inputs["head_ids"][place] = value
    assert words in refusal(head)


def test_a_token_in_both_heads_is_an_error():
    head = random_head(np.random.default_rng(13))
    for place in range(len(head.inputs["more_ids"])):
        ids = head.inputs["more_ids"].copy()
        ids[place] = ids[place] // 3 * 3
        if np.any(np.diff(ids) <= 0):
            continue
        changed = head.more()
        changed.inputs["more_ids"] = ids
        assert f"more_ids[{place}] is {ids[place]}, which is in head_ids, too" in refusal(changed)


def test_inputs_that_do_not_go_together_are_errors():
    head = random_head(np.random.default_rng(14))
    del head.inputs["more_ids"]
    assert "more_head and more_ids go together" in refusal(head)
    head = random_head(np.random.default_rng(14), blocks=2)
    del head.inputs["norm_2"]
    assert "norm_2 is missing, but blocks is 2" in refusal(head)
    head.attributes["blocks"] = 1
    assert "gate_up_2 is given, but blocks is 1" in refusal(head)


@pytest.mark.parametrize("name", ["hidden", "intermediate", "nodes", "blocks", "vocabulary"])
@pytest.mark.parametrize("value", [0, -1, 2**40])
def test_wrong_attributes_are_errors(name, value):
    head = random_head(np.random.default_rng(15))
    head.attributes[name] = value
    refusal(head)
