"""Kinds of attention, and layers of each over a cache of their own."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from tests.ops import spec_attention_reference as reference
from tests.ops.single_op import SingleOp
from tests.ops.spec_attention_reference import FORMATS, Config, Tables

# Largest error of y for values of size 1. The reference reads the very keys and values that the operator stored.
TOLERANCE = {"f32": 4e-6, "f16": 4e-6} | dict.fromkeys(FORMATS[2:], 2e-5)
# A query that lies between two int8 codes may round one way in float32 and the other in float64: few do.
OTHER_CODE = 2e-2
CAPACITY = 320
GUARD = 256
SPAN = 256
"""Positions whose sums are joined at the end."""
CODED = ("int4", "int4x2", "int4x2_upper")
"""Formats whose keys the constants apply to."""
CONSTANTS = ("key_centre", "key_balance", "key_feedback")


class Case(NamedTuple):
    """A kind of attention; what is None or empty is not given.

    Attributes:
        config: attributes.
        rotary: elements of a head that are rotated, None for all.
        of_row: whether the norm of queries is one of whole rows, and that of keys; else it is one of heads.
        sinks, query_scale: whether they are given.
        constants: names of what 4-bit keys are written with.
        is_long: whether positions fill several spans.
    """

    config: Config = Config()
    rotary: int | None = None
    of_row: tuple[bool, bool] | None = None
    sinks: bool = False
    query_scale: bool = False
    constants: tuple[str, ...] = ()
    is_long: bool = False

    @property
    def capacity(self):
        return 760 if self.is_long else CAPACITY


HEADS, ROWS = (False, False), (True, True)
# Head sizes that are no multiple of 16 or 32, groups of every size, everything optional, chunks that windows cut.
PLAIN = {
    "plain": Case(),
    "smollm2": Case(Config(heads=9, kv_heads=3, dim=64, scale=0.125)),
    "wide": Case(Config(heads=2, kv_heads=1, dim=128)),
    "one head": Case(Config(heads=1, kv_heads=1, dim=2, scale=1.0)),
    "odd": Case(Config(heads=3, kv_heads=3, dim=22), 10),
    "80": Case(Config(heads=10, kv_heads=2, dim=80, interleaved=1), of_row=HEADS),
    "sinks": Case(Config(heads=6, kv_heads=2, dim=32, softcap=3.0), sinks=True),
    "window": Case(Config(heads=4, kv_heads=2, dim=48, window=70), 16, HEADS, sinks=True),
    "narrow window": Case(Config(heads=33, kv_heads=1, dim=16, window=3)),
    "no columns to rotate": Case(Config(dim=40), 0),
    "norms of rows": Case(Config(heads=6, kv_heads=2, dim=40), 24, ROWS),
    "norms of rows, whole vectors": Case(Config(heads=4, kv_heads=2, dim=64, scale=0.125), of_row=ROWS),
    "a norm of rows for queries alone": Case(Config(heads=4, kv_heads=2, dim=32), of_row=(True, False)),
    "one key head": Case(Config(heads=5, kv_heads=1, dim=22, interleaved=1), of_row=(True, False)),
    "norms of rows in a window": Case(
        Config(heads=6, kv_heads=3, dim=32, window=70, softcap=3.0), None, ROWS, sinks=True, query_scale=True
    ),
    "behind the rotation": Case(Config(heads=4, kv_heads=2, dim=32, norm_after_rotation=1), of_row=HEADS),
    "one head behind the rotation": Case(Config(heads=1, kv_heads=1, dim=32, norm_after_rotation=1), of_row=HEADS),
    "behind a narrow rotation": Case(
        Config(heads=3, kv_heads=3, dim=22, interleaved=1, norm_after_rotation=1), 10, HEADS, query_scale=True
    ),
    "unrotated": Case(Config(heads=4, kv_heads=2, dim=64, scale=0.125, rotate=0)),
    "unrotated and normed": Case(
        Config(heads=4, kv_heads=2, dim=40, rotate=0, window=33), of_row=ROWS, query_scale=True
    ),
    "scaled queries": Case(Config(heads=9, kv_heads=3, dim=64, scale=0.125), query_scale=True),
    "gates": Case(Config(heads=6, kv_heads=2, dim=40, gated=1), 24, HEADS),
    "gates alone": Case(Config(heads=4, kv_heads=1, dim=64, scale=0.125, gated=1, window=70)),
    "limits": Case(Config(heads=4, kv_heads=2, dim=32, clip=0.75), of_row=ROWS),
    "gates and limits": Case(Config(heads=3, kv_heads=3, dim=22, gated=1, clip=0.5, interleaved=1), 10),
    "scaled queries and sinks": Case(
        Config(heads=6, kv_heads=2, dim=24, softcap=4.0), None, HEADS, sinks=True, query_scale=True
    ),
}
# Windows that begin inside a span, and one within which no row sees the first of three.
LONG = {
    "long": Case(Config(heads=3, kv_heads=1, dim=32), is_long=True),
    "long, sinks": Case(Config(heads=4, kv_heads=2, dim=22, softcap=3.0), None, HEADS, sinks=True, is_long=True),
    "long, window": Case(Config(heads=4, kv_heads=2, dim=16, window=300), sinks=True, is_long=True),
    "long, narrow window": Case(Config(heads=2, kv_heads=2, dim=16, window=40), is_long=True),
}
# Heads in whole vectors of 16 and not, of one vector and of many.
OF_SIZE = {
    16: Case(Config(heads=4, kv_heads=2, dim=16)),
    22: Case(Config(heads=3, kv_heads=3, dim=22), 10),
    40: Case(Config(heads=4, kv_heads=1, dim=40, window=30), of_row=HEADS),
    64: Case(Config(heads=9, kv_heads=3, dim=64, scale=0.125)),
    80: Case(Config(heads=10, kv_heads=2, dim=80, interleaved=1), of_row=HEADS),
    128: Case(Config(heads=2, kv_heads=1, dim=128, scale=0.1)),
    256: Case(Config(heads=2, kv_heads=2, dim=256, scale=0.06), 64, HEADS),
}
CONSTANT = {
    **{f"constants, {dim}": case._replace(constants=CONSTANTS) for dim, case in OF_SIZE.items()},
    "centre, 40": OF_SIZE[40]._replace(constants=CONSTANTS[:1]),
    "balance, 22": OF_SIZE[22]._replace(constants=CONSTANTS[1:2]),
    "feedback, 80": OF_SIZE[80]._replace(constants=CONSTANTS[2:]),
    "centre and balance, 128": OF_SIZE[128]._replace(constants=CONSTANTS[:2]),
    **{
        f"constants, {name}": PLAIN[name]._replace(constants=CONSTANTS)
        for name in ("norms of rows", "behind the rotation", "unrotated", "scaled queries")
    },
    "balance and feedback beside sinks": PLAIN["window"]._replace(constants=CONSTANTS[1:]),
    "balance and feedback beside a softcap": PLAIN["sinks"]._replace(constants=CONSTANTS[1:], sinks=False),
}
CASES = {**PLAIN, **LONG, **CONSTANT}
TABLE = [*product([*PLAIN, *LONG], FORMATS), *product(CONSTANT, CODED)]
"""Names of a case and of a format of the cache."""
SOME_OF_TABLE = [
    *((name, FORMATS[(at + step) % len(FORMATS)]) for at, name in enumerate([*PLAIN, *LONG]) for step in (0, 2, 5)),
    *((name, CODED[(at + step) % len(CODED)]) for at, name in enumerate(CONSTANT) for step in (0, 1)),
]
"""Every case with some formats in turn: how rows are coded and how they are seen do not know of each other."""


def make_tables(rng, case, **changed):
    """Return random tables; ``changed`` replaces some."""
    config, positions = case.config, case.capacity
    half = (config.dim if case.rotary is None else case.rotary) // 2
    angles = np.arange(positions)[:, None] * 100.0 ** -(np.arange(half) / max(half, 1))
    draw = lambda n: rng.uniform(0.5, 1.5, n).astype(np.float32)  # noqa: E731
    drawn = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    if case.of_row is not None:
        for name, heads, of_row in zip(("q_norm", "k_norm"), (config.heads, config.kv_heads), case.of_row, strict=True):
            drawn[name] = draw((heads if of_row else 1) * config.dim)
    if case.sinks:
        drawn["sinks"] = draw(config.heads)
    if case.query_scale:
        drawn["query_scale"] = draw(positions)
    return Tables(**{**drawn, **make_constants(rng, config, case.constants), **changed})


def make_constants(rng, config, names=CONSTANTS):
    heads, dim = config.kv_heads, config.dim
    drawn = {
        "key_centre": rng.standard_normal((heads, dim)),
        "key_balance": rng.uniform(0.5, 2.0, (heads, dim)),
        "key_feedback": np.triu(0.12 * rng.standard_normal((heads, dim, dim)), 1),
    }
    return {name: drawn[name].astype(np.float32) for name in names}


class Layer:
    """One layer's cache, between guards, and what is needed to run passes over it."""

    def __init__(self, config, tables, kv_format="f32", *, row_map=None, isa=None, threads=1, capacity=CAPACITY):
        self.config, self.tables, self.kv_format = config, tables, kv_format
        self.row_map = np.arange(capacity, dtype=np.int32) if row_map is None else row_map.astype(np.int32)
        empty = reference.empty_cache(config, kv_format, capacity)
        self.memory = np.full(empty.size + 2 * GUARD, 0xA5, np.uint8)
        self.cache = self.memory[GUARD : GUARD + empty.size].reshape(empty.shape)
        self.cache[...] = 0
        self.options = {"isa": isa, "threads": threads}
        self.op = None

    def inputs(self, qkv, past, parents=None):
        chain = np.arange(-1, len(qkv) - 1)
        return {
            "qkv": qkv,
            "cache": self.cache,
            "past_length": np.array([past], np.int32),
            "row_map": self.row_map,
            "sequence_rows": np.array([len(qkv)], np.int32),
            "parents": np.array(chain if parents is None else parents, np.int32),
            "kv_formats": np.array([-1, FORMATS.index(self.kv_format)], np.int32),
            "cos": self.tables.cos,
            "sin": self.tables.sin,
            **self.tables.optional,
        }

    def run(self, qkv, past, parents=None, /, **changed):
        inputs = {**self.inputs(qkv, past, parents), **changed}
        inputs["row_map"] = np.atleast_2d(inputs["row_map"])
        if self.op is None:
            self.op = SingleOp("SpecAttention", self.config.attributes, inputs, **self.options)
        try:
            return self.op.run_in_place(**inputs)[0]
        finally:
            assert (self.memory[:GUARD] == 0xA5).all()
            assert (self.memory[-GUARD:] == 0xA5).all()

    def expected(self, qkv, past, parents=None):
        parents = range(-1, len(qkv) - 1) if parents is None else parents
        return reference.attend(
            self.config, self.tables, qkv, self.cache, self.kv_format, past, self.row_map, list(parents)
        )

    def stored(self, count):
        """Return keys and values of the first positions, as the cache holds them."""
        return reference.read_cache(self.cache, self.kv_format, self.config.dim)[:, :, self.row_map[:count]]


def make_layers(rng, name, kv_format, *options):
    """Return layers of a case, one for each of some dicts of options."""
    case = CASES[name]
    tables = make_tables(rng, case)
    return [Layer(case.config, tables, kv_format, capacity=case.capacity, **each) for each in options]


def with_changes(layer, **changed):
    """Return a layer with other tables and an empty cache."""
    return Layer(layer.config, replace(layer.tables, **changed), layer.kv_format)


def make_rows(rng, config, count):
    return rng.standard_normal((count, config.width)).astype(np.float32)


def random_parents(rng, count):
    return [int(rng.integers(-1, i)) if i else -1 for i in range(count)]


def check(y, wanted, kv_format):
    error = np.abs(y - wanted) / (4 + np.abs(wanted))
    if reference.has_query_codes(kv_format):
        assert np.quantile(error, 0.9) <= TOLERANCE[kv_format]
        assert error.max() <= OTHER_CODE
    else:
        assert error.max() <= TOLERANCE[kv_format]
