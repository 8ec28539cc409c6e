"""GatedDelta against its definition in float64; and its bits, whatever passes, drafts and slots rows went through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

DRAFTS = 12


@dataclass(frozen=True)
class Shape:
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    is_tiled: bool = False

    def __str__(self):
        order = "-tiled" if self.is_tiled else ""
        return f"{self.key_heads}x{self.key_dim}-{self.value_heads}x{self.value_dim}{order}"

    @property
    def keys(self):
        return self.key_heads * self.key_dim

    @property
    def values(self):
        return self.value_heads * self.value_dim

    @property
    def transition(self):
        return self.value_heads + self.keys + self.values

    def key_head_of(self, head):
        return head % self.key_heads if self.is_tiled else head // (self.value_heads // self.key_heads)

    def rows(self, count, seed=0):
        """Return inputs of so many rows: name -> array."""
        rng = np.random.default_rng([seed, self.value_heads])
        heads = self.value_heads
        widths = {"qkv": 2 * self.keys + self.values, "z": self.values, "b": heads, "a": heads}
        return {name: rng.normal(size=(count, width)).astype(np.float32) for name, width in widths.items()}

    def weights(self):
        rng = np.random.default_rng(self.value_heads)
        return {
            "a_scale": -np.exp(0.7 * rng.normal(size=self.value_heads)).astype(np.float32),
            "dt_bias": rng.normal(size=self.value_heads).astype(np.float32),
            "norm": (1 + 0.3 * rng.normal(size=self.value_dim)).astype(np.float32),
        }


TINY = Shape(2, 32, 6, 48)
SHAPES = [TINY, Shape(2, 32, 6, 48, True), Shape(16, 128, 16, 128), Shape(1, 16, 1, 16)]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
EPSILON = 2e-3


def int32(*values):
    return np.asarray(values, np.int32)


def part(rows, which):
    return {name: np.ascontiguousarray(array[which]) for name, array in rows.items()}


def joined(*parts):
    return {name: np.concatenate([rows[name] for rows in parts]) for name in parts[0]}


class Layer:
    """A layer and what a host keeps of its sequences; what was never written is no number."""

    def __init__(self, shape, *, sequences=1, isa=None, threads=2):
        self.shape, self.weights = shape, shape.weights()
        floats = shape.values * shape.key_dim + DRAFTS * shape.transition
        self.state = np.full((sequences, 2, floats), np.nan, np.float32)
        self.slot, self.past, self.advance = 0, 0, []
        example = {**shape.rows(1), **self.weights, "state": self.state, "advance": int32([0])}
        example |= dict.fromkeys(
            ("past_length", "state_index", "slot", "certain", "parents", "sequence_rows"), int32(0)
        )
        attributes = {"key_heads": shape.key_heads, "is_tiled": int(shape.is_tiled), "epsilon": EPSILON}
        self.op = SingleOp("GatedDelta", attributes, example, isa=isa, threads=threads)

    def run(self, rows, text=None, parents=None, **changed):
        """Return y of a pass that is not taken yet; its first `text` rows are certain, all of them by default."""
        count = len(rows["qkv"])
        advance = np.full((1, DRAFTS), -1, np.int32)
        advance[0, : len(self.advance)] = self.advance
        inputs = {
            **rows,
            **self.weights,
            "state": self.state,
            "past_length": int32(self.past),
            "state_index": int32(0),
            "slot": int32(self.slot),
            "advance": advance,
            "certain": int32(count if text is None else text),
            "parents": np.arange(-1, count - 1, dtype=np.int32) if parents is None else int32(*parents),
            "sequence_rows": int32(count),
        }
        return self.op.run_in_place(**inputs | changed)[0]

    def take(self, certain, drafts=()):
        """Go on behind the rows of the last pass that are text."""
        self.slot, self.past, self.advance = 1 - self.slot, self.past + certain + len(drafts), list(drafts)

    def text(self, rows):
        y = self.run(rows)
        self.take(len(y))
        return y

    def matrices(self):
        """Return S of the slot that is read next: [value heads, key dim, value dim]."""
        shape = self.shape
        stripes = self.state[0, self.slot, : shape.values * shape.key_dim]
        stripes = stripes.reshape(shape.value_heads, shape.value_dim // 16, shape.key_dim, 16)
        return stripes.swapaxes(1, 2).reshape(shape.value_heads, shape.key_dim, shape.value_dim)


def definition(shape, rows):
    """Return y of a whole text, and S behind it, in float64."""
    q, k, v = np.split(rows["qkv"].astype(np.float64), [shape.keys, 2 * shape.keys], axis=1)
    weights = shape.weights()
    heads = [shape.key_head_of(head) for head in range(shape.value_heads)]
    split = (len(q), shape.key_heads, shape.key_dim)
    q, k = (x.reshape(split) / np.sqrt((x.reshape(split) ** 2).sum(2, keepdims=True) + 1e-6) for x in (q, k))
    q, k = q[:, heads] / np.sqrt(shape.key_dim), k[:, heads]
    v, z = (x.reshape(-1, shape.value_heads, shape.value_dim) for x in (v, rows["z"].astype(np.float64)))
    softplus = np.logaddexp(0, rows["a"].astype(np.float64) + weights["dt_bias"])
    decay, beta = np.exp(weights["a_scale"] * softplus), 1 / (1 + np.exp(-rows["b"].astype(np.float64)))
    states, y = np.zeros((shape.value_heads, shape.key_dim, shape.value_dim)), np.empty_like(v)
    for i in range(len(q)):
        states *= decay[i][:, None, None]
        d = beta[i][:, None] * (v[i] - np.einsum("hkv,hk->hv", states, k[i]))
        states += k[i][:, :, None] * d[:, None, :]
        y[i] = np.einsum("hkv,hk->hv", states, q[i])
    y *= weights["norm"] / np.sqrt((y**2).mean(2, keepdims=True) + EPSILON)
    return (y * z / (1 + np.exp(-z))).reshape(len(q), -1), states


@by_shape
@pytest.mark.parametrize("isa", ISAS)
def test_any_division_into_passes_gives_the_numbers_of_the_definition_and_the_same_bits(shape, isa):
    rows = shape.rows(300)
    whole = Layer(shape)
    bits = whole.text(rows)
    y, states = definition(shape, rows)
    np.testing.assert_allclose(bits, y, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(whole.matrices(), states, rtol=1e-4, atol=1e-5)
    for sizes in ([1] * 10, [2, 1, 7, 64, 226], [256, 44]):
        layer = Layer(shape, isa=isa, threads=1)
        for size in sizes:
            past = layer.past
            found = layer.text(part(rows, slice(past, past + size)))
            assert found.tobytes() == bits[past : past + size].tobytes(), (sizes, past)
    assert layer.matrices().tobytes() == whole.matrices().tobytes()


@by_shape
def test_a_row_of_a_tree_has_the_bits_of_its_own_text(shape):
    parents = [-1, 0, 1, 2, 3, 2, 2, 6, 1, 8, 9, 1]  # two certain ones, behind which the tree begins
    text, nodes = shape.rows(5, 1), shape.rows(len(parents), 2)
    layer = Layer(shape)
    layer.text(text)
    found = layer.run(nodes, 2, parents)
    assert layer.run(nodes, 2, parents).tobytes() == found.tobytes()
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        assert found[node].tobytes() == Layer(shape).text(joined(text, part(nodes, path)))[-1].tobytes()


def drafts_around(text, other, rng):
    """Return a tree, depth first, that has rows of the text along one path: rows, parents and that path's numbers.

    Every row that is not of the text is one of `other`.
    """
    count, length = int(rng.integers(0, DRAFTS + 1)), 0
    accepted, parents, pieces, current = [], [], [], []
    for i in range(count):
        current = current[: int(rng.integers(len(current) + 1))] if rng.integers(3) == 0 else current
        parents.append(current[-1] if current else -1)
        if current == accepted and length < len(text["qkv"]) and rng.integers(5) > 0:
            pieces.append(part(text, slice(length, length + 1)))
            accepted.append(i)
            length += 1
        else:
            pieces.append(part(other, slice(i, i + 1)))
        current.append(i)
    return pieces, parents, accepted


@by_shape
def test_accepted_drafts_have_the_bits_of_the_text_and_all_others_leave_no_trace(shape):
    """Chains and trees, with certain rows before them or none; and passes that nobody wanted in between."""
    rows = shape.rows(150)
    bits, rng, layer, most = Layer(shape).text(rows), np.random.default_rng(3), Layer(shape), 0
    layer.text(part(rows, slice(0, 3)))
    while layer.past < 120:
        past, certain = layer.past, int(rng.integers(0, 4))
        pieces, parents, accepted = drafts_around(
            part(rows, slice(past + certain, past + certain + DRAFTS)), shape.rows(DRAFTS, past), rng
        )
        if certain + len(pieces) == 0:
            continue
        parents = [*range(-1, certain - 1), *(parent + certain for parent in parents)]
        before = layer.state[0, layer.slot].tobytes()
        layer.run(shape.rows(5, past), 2)
        found = layer.run(joined(part(rows, slice(past, past + certain)), *pieces), certain, parents)
        assert layer.state[0, layer.slot].tobytes() == before
        text = found[[*range(certain), *(certain + i for i in accepted)]]
        assert text.tobytes() == bits[past : past + len(text)].tobytes()
        layer.take(certain, accepted)
        most = max(most, len(accepted))
    assert most > 4  # more than go through registers together
    layer.text(part(rows, slice(layer.past, 150)))
    again = Layer(shape)
    again.text(rows)
    assert layer.matrices().tobytes() == again.matrices().tobytes()


def test_sequences_of_a_pass_see_nothing_of_each_other():
    texts = [TINY.rows(9, seed) for seed in range(3)]
    layer = Layer(TINY, sequences=4)
    places, pasts, certain, counts = int32(2, 0, 3), [4, 0, 8], int32(2, 9, 0), [5, 9, 1]
    for place, text, past in zip(places, texts, pasts, strict=True):
        if past:
            layer.run(part(text, slice(0, past)), state_index=int32(place), past_length=int32(0), slot=int32(1))
    layer.state[1] = 7
    found = layer.run(
        joined(*(part(text, slice(past, 9)) for text, past in zip(texts, pasts, strict=True))),
        state_index=places,
        past_length=int32(*pasts),
        slot=int32(0, 1, 0),
        advance=np.full((3, 0), -1, np.int32),
        certain=certain,
        parents=int32(*(i for count in counts for i in range(-1, count - 1))),
        sequence_rows=int32(*counts),
    )
    alone = [Layer(TINY).text(text)[past:] for text, past in zip(texts, pasts, strict=True)]
    assert found.tobytes() == np.concatenate(alone).tobytes()
    assert (layer.state[1] == 7).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"past_length": int32(-1)}, r"past_length\[0\] is -1"),
        ({"state_index": int32(1)}, r"state_index\[0\] is 1, must be 0 to 0"),
        ({"slot": int32(2)}, r"slot\[0\] is 2"),
        ({"advance": int32([3, 3])}, r"advance\[0, 1\] is 3"),
        ({"advance": int32([DRAFTS])}, rf"advance\[0, 0\] is {DRAFTS}"),
        ({"advance": int32([-1, 0])}, r"advance\[0, 1\] is 0"),
        ({"advance": int32([0]), "past_length": int32(0)}, "-1 where past_length is 0"),
        ({"certain": int32(7)}, r"certain\[0\] is 7"),
        ({"parents": int32(-1, -1, 1, 2, 3, 2)}, r"parents\[1\] is -1, must be 0: it is certain"),
        ({"parents": int32(-1, 0, 0, 2, 3, 2)}, r"parents\[2\] is 0, must be 1"),
        ({"parents": int32(-1, 0, 1, 1, 2, 2)}, r"parents\[4\] is 2, .*depth first"),
        ({"parents": int32(-1, 0, 1, 2, 3, 5)}, r"parents\[5\] is 5"),
        ({"sequence_rows": int32(5)}, r"sequence_rows\[0\] is 5"),
        ({"state": np.zeros((1, 2, 9216 + 7), np.float32)}, "state has slots of 9223 floats"),
        ({"state": np.zeros((1, 2, 9216), np.float32)}, "at most 0 drafts"),
        ({"norm": np.zeros(40, np.float32)}, r"norm is \[40\]"),
        ({"a_scale": np.zeros(5, np.float32)}, r"a_scale is \[5\]"),
        ({"qkv": np.zeros((6, 417), np.float32)}, "qkv has 417 columns"),
        ({"z": np.zeros((6, 287), np.float32)}, "z"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changed, message):
    layer = Layer(TINY)
    layer.past = 1
    with pytest.raises(RuntimeError, match=message):
        layer.run(TINY.rows(6), 2, **changed)
    assert np.isnan(layer.state).all()
