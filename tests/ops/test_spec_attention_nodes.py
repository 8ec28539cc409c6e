"""SpecAttention over a tree whose first nodes earlier passes have appended: it has the bits of one pass over all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config
from tests.ops.test_spec_attention import CAPACITY, Layer, make_rows, make_tables, random_parents

pytestmark = [needs_native, pytest.mark.own_pools]

WINDOW = Config(heads=4, kv_heads=2, dim=48, window=70)


def layers(config, kv_format, rng, **options):
    """Return two layers with the same rows before a tree, and the tree's past."""
    tables, row_map = make_tables(rng, config), rng.permutation(CAPACITY)
    found = [Layer(config, tables, kv_format, row_map=row_map, **options) for _ in range(2)]
    past = int(rng.choice([0, 5, 60, 63, 64, 130, 255, 270]))
    if past:
        before = make_rows(rng, config, past)
        for layer in found:
            layer.run(before, 0)
    return found, past


@pytest.mark.parametrize("config", [Config(), WINDOW], ids=["whole", "window"])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_tree_in_several_passes_has_the_bits_of_one(kv_format, config):
    rng = np.random.default_rng(len(kv_format))
    for turn in range(12):
        (whole, parts), past = layers(config, kv_format, rng, threads=1 + turn % 2)
        count = int(rng.choice([2, 3, 9, 16, 17, 40]))
        parents = list(range(-1, count - 1)) if turn % 3 == 0 else random_parents(rng, count)
        qkv = make_rows(rng, config, count)
        expected = whole.run(qkv, past, parents)
        done = 0
        while done < count:
            end = done + int(rng.integers(1, count - done + 1))
            y = parts.run(qkv[done:end], past, parents[:end])
            assert y.tobytes() == expected[done:end].tobytes(), (turn, past, done, end, parents)
            done = end
        assert parts.cache.tobytes() == whole.cache.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_rows_do_not_see_nodes_that_are_not_their_ancestors(isa):
    rng = np.random.default_rng(3)
    config = Config()
    (layer, other), past = layers(config, "f16", rng, isa=isa)
    qkv = make_rows(rng, config, 4)
    # The last row follows the first node; the nodes between them are another branch.
    parents = [-1, 0, 1, 0]
    layer.run(qkv[:3], past, parents[:3])
    changed = qkv.copy()
    changed[1:3] = make_rows(rng, config, 2)
    other.run(changed[:3], past, parents[:3])
    assert layer.run(qkv[3:], past, parents).tobytes() == other.run(qkv[3:], past, parents).tobytes()


@pytest.mark.parametrize(
    ("nodes", "past", "problem"),
    [
        (1, 0, r"parents is \[1\], must be \[2\], or longer"),
        (CAPACITY + 1, 0, "cache has 320 rows"),
        (5, CAPACITY - 4, "cache has 320 rows"),
    ],
)
def test_mistakes(nodes, past, problem):
    rng = np.random.default_rng(4)
    config = Config()
    layer = Layer(config, make_tables(rng, config), "f16")
    before = layer.cache.tobytes()
    with pytest.raises(Exception, match=problem):
        layer.run(make_rows(rng, config, 2), past, list(range(-1, nodes - 1)))
    assert layer.cache.tobytes() == before
