"""ShortConv against a loop in float64; and its bits, whatever passes, trees and places in the cache its rows have."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.runtime.cache.sliding_window import SlidingWindow
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

POSITIONS = 320
SHAPES = [(64, 3, False), (37, 4, True), (5, 16, True), (16, 1, False)]
"""Channels, taps, and whether there is a bias."""


def int32(*values):
    return np.asarray(values, np.int32)


class Convolution:
    """A layer with a cache of its own; rows that no position was written to are no number."""

    def __init__(self, channels, taps, has_bias, *, capacity=POSITIONS, row_map=None, isa=None, threads=2):
        rng = np.random.default_rng(channels)
        self.taps, self.channels = taps, channels
        self.fixed = {"weight": rng.normal(size=(taps, channels)).astype(np.float32)}
        if has_bias:
            self.fixed["bias"] = rng.normal(size=channels).astype(np.float32)
        self.cache = np.full((capacity, channels), np.nan, np.float32)
        self.row_map = np.arange(POSITIONS, dtype=np.int32) if row_map is None else row_map
        example = {**self.fixed, "bcx": np.zeros((1, 1), np.float32), "cache": self.cache}
        example |= dict.fromkeys(("past_length", "parents", "sequence_rows"), int32(0))
        self.op = SingleOp("ShortConv", {}, {**example, "row_map": self.row_map[None]}, isa=isa, threads=threads)

    def run(self, bcx, past, parents=None, **changed):
        rows = len(bcx)
        inputs = {
            **self.fixed,
            "bcx": bcx,
            "cache": self.cache,
            "past_length": int32(past),
            "row_map": self.row_map[None],
            "parents": np.arange(-1, rows - 1, dtype=np.int32) if parents is None else int32(*parents),
            "sequence_rows": int32(rows),
        }
        return self.op.run_in_place(**inputs | changed)[0]

    def expected(self, bcx):
        """Return y of a whole text in float64."""
        b, gate, x = np.split(bcx.astype(np.float64), 3, axis=1)
        u = np.concatenate([np.zeros((self.taps - 1, self.channels)), b * x])
        y = sum(self.fixed["weight"][j] * u[j : j + len(bcx)] for j in range(self.taps))
        return gate * (y + self.fixed.get("bias", 0))


def make_rows(channels, count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3 * channels)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_any_division_into_passes_gives_the_numbers_of_the_definition_and_the_same_bits(shape, isa):
    bcx = make_rows(shape[0], 300)
    whole = Convolution(*shape)
    bits = whole.run(bcx, 0)
    np.testing.assert_allclose(bits, whole.expected(bcx), rtol=1e-5, atol=1e-5)
    for sizes in ([1] * 10, [2, 1, 7, 64, 200], [256, 44]):
        layer, past = Convolution(*shape, isa=isa, threads=1), 0
        for size in sizes:
            found = layer.run(bcx[past : past + size], past)
            assert found.tobytes() == bits[past : past + size].tobytes(), (sizes, past)
            past += size


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_of_a_tree_has_the_bits_of_its_own_text(shape):
    prompt, nodes = make_rows(shape[0], 5, 1), make_rows(shape[0], 9, 2)
    parents = [-1, 0, 0, 1, 1, -1, 5, 3, 7]
    layer = Convolution(*shape, row_map=np.random.default_rng(3).permutation(POSITIONS).astype(np.int32))
    layer.run(prompt, 0)
    # The last six as nodes behind the three that an earlier pass has computed.
    found = np.concatenate([layer.run(nodes[:3], 5, parents[:3]), layer.run(nodes[3:], 5, parents)])
    again = layer.run(nodes, 5, parents)
    assert found.tobytes() == again.tobytes()
    for node in range(len(nodes)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        text = np.concatenate([prompt, nodes[path]])
        assert found[node].tobytes() == Convolution(*shape).run(text, 0)[-1].tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_that_were_given_up_leave_no_trace(shape):
    """What comes behind a draft or a cancelled pass is computed from the committed rows alone, in a ring as well."""
    channels, taps, _ = shape
    bcx = make_rows(channels, POSITIONS)
    bits = Convolution(*shape).run(bcx, 0)
    ring = SlidingWindow(taps, taps + 15, POSITIONS)
    layer = Convolution(*shape, capacity=ring.capacity, row_map=ring.row_map)
    rng, past = np.random.default_rng(4), 0
    while past + 16 < POSITIONS:
        ring.assign(past + 16)
        layer.run(make_rows(channels, int(rng.integers(1, 17)), past), past)
        count = int(rng.integers(1, 17))
        assert layer.run(bcx[past : past + count], past).tobytes() == bits[past : past + count].tobytes()
        past += count
    assert ring.assigned > 2 * ring.capacity


def test_sequences_of_a_pass_see_nothing_of_each_other():
    shape, pasts, rows = SHAPES[1], [3, 0, 20], [4, 1, 6]
    texts = [make_rows(shape[0], past + count, past) for past, count in zip(pasts, rows, strict=True)]
    layer = Convolution(*shape)
    maps = np.stack([np.arange(begin, begin + 100, dtype=np.int32) for begin in (0, 100, 200)])
    for text, past, row_map in zip(texts, pasts, maps, strict=True):
        if past:
            layer.run(text[:past], 0, row_map=row_map[None])
    parents = np.concatenate([np.arange(-1, count - 1) for count in rows]).astype(np.int32)
    bcx = np.concatenate([text[past:] for text, past in zip(texts, pasts, strict=True)])
    found = layer.run(bcx, 0, past_length=int32(*pasts), row_map=maps, parents=parents, sequence_rows=int32(*rows))
    alone = [Convolution(*shape).run(text, 0)[past:] for text, past in zip(texts, pasts, strict=True)]
    assert found.tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"row_map": np.full((1, POSITIONS), 7, np.int32)}, "row_map gives row 7"),
        ({"row_map": np.full((1, POSITIONS), POSITIONS, np.int32)}, "row_map holds 320"),
        ({"past_length": int32(POSITIONS - 2)}, "row_map has 320 positions"),
        ({"parents": int32(-1, 1, 0)}, r"parents\[1\] is 1"),
        ({"sequence_rows": int32(2)}, r"sequence_rows\[0\] is 2"),
        ({"weight": np.zeros((17, 64), np.float32)}, "must be 1 to 16 taps"),
        ({"weight": np.zeros((3, 48), np.float32)}, "bcx"),
        ({"cache": np.zeros((320, 63), np.float32)}, "cache"),
    ],
    ids=["row twice", "no such row", "past", "parents", "sequence rows", "taps", "channels", "cache"],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changed, message):
    layer = Convolution(*SHAPES[0])
    with pytest.raises(RuntimeError, match=message):
        layer.run(make_rows(64, 3), 0, **changed)
    assert np.isnan(layer.cache).all()
