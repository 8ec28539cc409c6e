"""What tests of operators with states have in common: a layer, and what a host keeps of its texts."""

from __future__ import annotations

import numpy as np

from tests.ops.single_op import SingleOp

DRAFTS = 12


def int32(*values):
    return np.asarray(values, np.int32)


def part(rows, which):
    return {name: np.ascontiguousarray(array[which]) for name, array in rows.items()}


def joined(*parts):
    return {name: np.concatenate([rows[name] for rows in parts]) for name in parts[0]}


class Heads:
    """Heads of a state: a matrix of ``key_dim`` by ``value_dim`` for each of ``value_heads``."""

    @property
    def keys(self):
        return self.key_heads * self.key_dim

    @property
    def values(self):
        return self.value_heads * self.value_dim


class Layer:
    """A layer and what a host keeps of its sequences; what was never written is no number.

    Its shape has, besides what an operator is called with::

        op, attributes                                  of the node
        those of `Heads`                                of its states; or else
        state_floats, transition_floats                 of a slot
        rows(count, seed)                               name -> array of so many rows; `first`: that of input 0
        weights()                                       name -> array
    """

    def __init__(self, shape, *, sequences=1, isa=None, threads=2):
        self.shape, self.weights = shape, shape.weights()
        if hasattr(shape, "state_floats"):
            self.state_floats, transition = shape.state_floats, shape.transition_floats
        else:
            self.state_floats = shape.values * shape.key_dim
            transition = shape.value_heads + shape.keys + shape.values
        floats = self.state_floats + DRAFTS * transition
        self.state = np.full((sequences, 2, floats), np.nan, np.float32)
        self.slot, self.past, self.advance = 0, 0, []
        example = {**shape.rows(1), **self.weights, "state": self.state, "advance": int32([0])}
        example |= dict.fromkeys(
            ("past_length", "state_index", "slot", "certain", "parents", "sequence_rows"), int32(0)
        )
        self.op = SingleOp(shape.op, shape.attributes, example, isa=isa, threads=threads)

    def run(self, rows, text=None, parents=None, **changed):
        """Return y of a pass that is not taken yet; its first `text` rows are certain, all of them by default."""
        count = len(rows[self.shape.first])
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
        stripes = self.state[0, self.slot, : self.state_floats]
        stripes = stripes.reshape(shape.value_heads, shape.value_dim // 16, shape.key_dim, 16)
        return stripes.swapaxes(1, 2).reshape(shape.value_heads, shape.key_dim, shape.value_dim)


def check_divisions(shape, isa, y, states):
    """Check a text of 300 rows against its definition, and that any division into passes gives the same bits."""
    whole, layer = check_bits(shape, isa, y)
    np.testing.assert_allclose(whole.matrices(), states, rtol=1e-4, atol=1e-5)
    assert layer.matrices().tobytes() == whole.matrices().tobytes()


def check_bits(shape, isa, y):
    """Check the rows that come out, likewise; return layers that have seen the text in one pass and in several."""
    rows = shape.rows(300)
    whole = Layer(shape)
    bits = whole.text(rows)
    np.testing.assert_allclose(bits, y, rtol=1e-4, atol=2e-5)
    for sizes in ([1] * 10, [2, 1, 7, 64, 226], [256, 44]):
        layer = Layer(shape, isa=isa, threads=1)
        for size in sizes:
            past = layer.past
            found = layer.text(part(rows, slice(past, past + size)))
            assert found.tobytes() == bits[past : past + size].tobytes(), (sizes, past)
    return whole, layer


def check_tree(shape):
    """Check that a row of a tree has the bits of its own text."""
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


def _drafts_around(text, other, rng):
    """Return a tree, depth first, that has rows of the text along one path: rows, parents and that path's numbers.

    Every row that is not of the text is one of `other`.
    """
    count, length = int(rng.integers(0, DRAFTS + 1)), 0
    accepted, parents, pieces, current = [], [], [], []
    for i in range(count):
        current = current[: int(rng.integers(len(current) + 1))] if rng.integers(3) == 0 else current
        parents.append(current[-1] if current else -1)
        if current == accepted and length < len(next(iter(text.values()))) and rng.integers(5) > 0:
            pieces.append(part(text, slice(length, length + 1)))
            accepted.append(i)
            length += 1
        else:
            pieces.append(part(other, slice(i, i + 1)))
        current.append(i)
    return pieces, parents, accepted


def check_accepted_drafts(shape):
    """Check that accepted drafts have the bits of the text, and that no others leave a trace.

    Chains and trees, with certain rows before them or none; and passes that nobody wanted in between.
    """
    rows = shape.rows(150)
    bits, rng, layer, most = Layer(shape).text(rows), np.random.default_rng(3), Layer(shape), 0
    layer.text(part(rows, slice(0, 3)))
    while layer.past < 120:
        past, certain = layer.past, int(rng.integers(0, 4))
        pieces, parents, accepted = _drafts_around(
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
    again, used = Layer(shape), slice(0, layer.state_floats)
    again.text(rows)
    assert layer.state[0, layer.slot, used].tobytes() == again.state[0, again.slot, used].tobytes()


def check_sequences(shape):
    """Check that sequences of a pass see nothing of each other."""
    texts = [shape.rows(9, seed) for seed in range(3)]
    layer = Layer(shape, sequences=4)
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
    alone = [Layer(shape).text(text)[past:] for text, past in zip(texts, pasts, strict=True)]
    assert found.tobytes() == np.concatenate(alone).tobytes()
    assert (layer.state[1] == 7).all()
