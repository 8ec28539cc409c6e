"""What SpecAttention refuses, and that it has changed nothing by then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ops.attention_cases import CAPACITY, Case, Layer, make_rows, make_tables
from tests.ops.single_op import needs_native
from tests.ops.spec_attention_reference import FORMATS, Config

pytestmark = [needs_native, pytest.mark.own_pools]


def permuted(**places):
    row_map = np.arange(CAPACITY, dtype=np.int32)
    for place, row in places.items():
        row_map[int(place[1:])] = row
    return row_map


INT = lambda *values: np.array(values, np.int32)  # noqa: E731
ZEROS = lambda *dims: np.zeros(dims, np.float32)  # noqa: E731
ONES = lambda dims: np.ones(dims, np.float32)  # noqa: E731
INPUTS = {
    "negative past": ({"past_length": INT(-1)}, "past_length -1"),
    "past beyond the cache": ({"past_length": INT(CAPACITY)}, "past_length 320 and 3 rows"),
    "pass beyond the cache": ({"past_length": INT(CAPACITY - 2)}, "row_map has 320 positions"),
    "largest past": ({"past_length": INT(2**31 - 1)}, "past_length 2147483647"),
    "negative row": ({"row_map": permuted(_2=-1)}, "row_map holds -1"),
    "row beyond the cache": ({"row_map": permuted(_6=CAPACITY)}, "row_map holds 320"),
    "row given twice": ({"row_map": permuted(_6=5)}, "row 5 to two positions"),
    "committed row": ({"row_map": permuted(_6=3)}, "row 3 of position 3"),
    "parent is the row itself": ({"parents": INT(-1, 1, 0)}, r"parents\[1\] is 1, must be -1 to 0"),
    "parent of the future": ({"parents": INT(2, 0, 1)}, r"parents\[0\] is 2"),
    "parent below -1": ({"parents": INT(-1, -2, 0)}, r"parents\[1\] is -2"),
    "too few parents": ({"parents": INT(-1, 0)}, r"parents is \[2\], must be \[3\], or longer"),
    "unknown format": ({"kv_formats": INT(0, 7)}, r"kv_formats\[1\] is 7"),
    "negative format": ({"kv_formats": INT(0, -1)}, r"kv_formats\[1\] is -1"),
    "no format for the layer": ({"kv_formats": INT(0)}, "kv_formats has 1 entries, layer is 1"),
    "row map of fewer positions": ({"row_map": INT(*range(7))}, "row_map has 7 positions"),
    "sequence without rows": ({"sequence_rows": INT(0)}, r"sequence_rows\[0\] is 0, the pass has 3 rows"),
    "rows of no sequence": ({"sequence_rows": INT(2)}, r"sequence_rows\[0\] is 2, the pass has 3 rows"),
    "two counts of rows": ({"sequence_rows": INT(1, 2)}, r"sequence_rows is \[2\], must be \[1\]"),
    "more sequences than rows": ({"past_length": INT(5, 5, 5, 5)}, "past_length has 4 sequences, must be 1 to 3"),
    "positions end": ({"cos": ZEROS(7, 8), "sin": ZEROS(7, 8)}, "position 7 has no row"),
    "sin unlike cos": ({"sin": ZEROS(CAPACITY, 7)}, "sin"),
    "rotation wider than a head": ({"cos": ZEROS(9, 9), "sin": ZEROS(9, 9)}, "cos has 9 columns"),
    "qkv of another width": ({"qkv": ZEROS(3, 127)}, "qkv"),
    "no rows": ({"qkv": ZEROS(0, 128), "parents": INT()}, "no rows"),
    "past of two numbers": ({"past_length": INT(5, 5)}, r"row_map is \[1, 320\], must be \[2, \*\]"),
    "more nodes than rows of the cache": (
        {"past_length": INT(0), "parents": INT(*range(-1, CAPACITY))},
        "row_map has 320 positions",
    ),
    "nodes behind the end of the cache": (
        {"past_length": INT(CAPACITY - 4), "parents": INT(*range(-1, 4))},
        "row_map has 320 positions",
    ),
    "cache of shorter rows": ({"cache": np.zeros((2, 2, CAPACITY, 63), np.uint8)}, "cache"),
    "cache of longer rows": ({"cache": np.zeros((2, 2, CAPACITY, 66), np.uint8)}, "cache"),
    "cache of fewer heads": ({"cache": np.zeros((2, 1, CAPACITY, 64), np.uint8)}, "cache"),
    "cache of keys alone": ({"cache": np.zeros((1, 2, CAPACITY, 64), np.uint8)}, "cache"),
}
# Of heads of 16, 4 of queries and 2 of keys.
TABLES = {
    "queries' norm of no head": ({"q_norm": ONES(15)}, "q_norm"),
    "keys' norm of no head": ({"k_norm": ONES(15)}, "k_norm"),
    "sinks of no heads": ({"sinks": ONES(15)}, "sinks"),
    "queries' norm of the keys' heads": ({"q_norm": ONES(32)}, r"q_norm is \[32\], must be \[16\] or \[64\]"),
    "keys' norm of the queries' heads": ({"k_norm": ONES(64)}, r"k_norm is \[64\], must be \[16\] or \[32\]"),
    "a norm of heads and elements": ({"q_norm": ONES((4, 16))}, r"q_norm is \[4, 16\]"),
    "fewer scales than positions": ({"query_scale": ONES(CAPACITY - 1)}, r"query_scale is \[319\]"),
    "scales of heads": ({"query_scale": ONES((CAPACITY, 4))}, "query_scale is"),
}
# In every format, those without the constants among them.
CONSTANTS = {
    "centre of one head": ({"key_centre": ZEROS(1, 16)}, r"key_centre is \[1, 16\]"),
    "centre of another size": ({"key_centre": ZEROS(2, 15)}, "key_centre is"),
    "flat centre": ({"key_centre": ZEROS(32)}, "key_centre is"),
    "balance of other heads": ({"key_balance": ZEROS(4, 16)}, r"key_balance is \[4, 16\]"),
    "feedback of one head": ({"key_feedback": ZEROS(1, 16, 16)}, "key_feedback is"),
    "feedback of fewer rows": ({"key_feedback": ZEROS(2, 15, 16)}, "key_feedback is"),
    "feedback of fewer columns": ({"key_feedback": ZEROS(2, 16, 15)}, "key_feedback is"),
    "flat feedback": ({"key_feedback": ZEROS(32, 16)}, "key_feedback is"),
}
ATTRIBUTES = {
    "heads that no group divides": ({"heads": 5}, {}, "num_heads is 5"),
    "no key heads": ({"kv_heads": 0}, {}, "num_heads is 4, must be a multiple of num_kv_heads 0"),
    "odd heads": ({"dim": 15}, {}, "head_dim is 15"),
    "wide heads": ({"dim": 1024}, {}, "head_dim is 1024"),
    "layer": ({"layer": -1}, {}, "layer is -1"),
    "window": ({"window": -1}, {}, "window is -1"),
    "softcap": ({"softcap": -1.0}, {}, "softcap is -1"),
    "interleaved": ({"interleaved": 2}, {}, "interleaved is 2"),
    "scale": ({"scale": float("nan")}, {}, "scale is not finite"),
    "epsilon": ({"epsilon": -1.0}, {}, "epsilon is -1"),
    "rotate, below": ({"rotate": -1}, {}, "rotate is -1, must be 0 or 1"),
    "rotate, above": ({"rotate": 2}, {}, "rotate is 2, must be 0 or 1"),
    "norm behind, below": ({"norm_after_rotation": -1}, {}, "norm_after_rotation is -1, must be 0 or 1"),
    "norm behind, above": ({"norm_after_rotation": 2}, {}, "norm_after_rotation is 2, must be 0 or 1"),
    "gates": ({"gated": 2}, {}, "gated is 2, must be 0 or 1"),
    "limit below 0": ({"clip": -0.5}, {}, "clip is -0.5, must be finite and not below 0"),
    "infinite limit": ({"clip": float("inf")}, {}, "clip is inf"),
    "limit before a norm": ({"clip": 1.0, "norm_after_rotation": 1}, {}, "clip is 1, with norm_after_rotation"),
    "queries' norm of rows behind the rotation": (
        {"norm_after_rotation": 1},
        {"q_norm": ONES(64)},
        r"q_norm is \[64\], with norm_after_rotation it must be \[16\]",
    ),
    "keys' norm of rows behind the rotation": (
        {"norm_after_rotation": 1},
        {"k_norm": ONES(32)},
        r"k_norm is \[32\], with",
    ),
    "a centre beside a softcap": (
        {"softcap": 2.0},
        {"key_centre": ZEROS(2, 16)},
        "key_centre is given beside a softcap",
    ),
    "a centre beside sinks": (
        {},
        {"key_centre": ZEROS(2, 16), "sinks": ONES(4)},
        "key_centre is given beside sinks",
    ),
}


def must_refuse(message, kv_format="f32", config=None, tables=None, inputs=None):
    """A pass of 3 rows behind 5, of which nothing may change; without the mistake it runs."""
    rng = np.random.default_rng(0)
    layer = Layer(Config(), make_tables(rng, Case()), kv_format)
    layer.run(make_rows(rng, layer.config, 5), 0)
    rows, before = make_rows(rng, layer.config, 3), layer.memory.tobytes()
    good = layer.config, layer.tables, layer.op
    layer.config, layer.tables = replace(layer.config, **(config or {})), replace(layer.tables, **(tables or {}))
    layer.op = layer.op if inputs else None
    with pytest.raises(Exception, match=f"SpecAttention: .*{message}"):
        layer.run(rows, 5, **(inputs or {}))
    assert layer.memory.tobytes() == before
    layer.config, layer.tables, layer.op = good
    assert np.isfinite(layer.run(rows, 5)).all()


@pytest.mark.parametrize("what", INPUTS)
def test_wrong_inputs(what):
    inputs, message = INPUTS[what]
    must_refuse(message, inputs=inputs)


@pytest.mark.parametrize("what", TABLES)
def test_wrong_tables(what):
    tables, message = TABLES[what]
    must_refuse(message, tables=tables)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("what", CONSTANTS)
def test_wrong_constants_of_keys(what, kv_format):
    tables, message = CONSTANTS[what]
    must_refuse(message, kv_format, tables=tables)


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_wrong_attributes(what):
    config, tables, message = ATTRIBUTES[what]
    must_refuse(message, "int4" if "key_centre" in tables else "f32", config, tables)


def test_a_norm_of_all_heads_has_no_gates_between():
    config, rng = Config(gated=1), np.random.default_rng(0)
    layer = Layer(config, make_tables(rng, Case(config), q_norm=ONES(64)))
    with pytest.raises(Exception, match=r"q_norm is \[64\], with gates it must be \[16\]"):
        layer.run(make_rows(rng, config, 3), 0)
    assert not layer.cache.any()
