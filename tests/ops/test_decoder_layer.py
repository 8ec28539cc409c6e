"""DecoderLayer gives the bits of the operators that it is made of."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from tests.ops import spec_attention_reference as reference
from tests.ops.packed import random_matrix
from tests.ops.single_op import ISAS, SingleOp, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config

pytestmark = [needs_native, pytest.mark.own_pools]

HIDDEN, INTERMEDIATE, CAPACITY = 96, 160, 450
ATTENTION = Config(heads=6, kv_heads=2, dim=32, scale=0.2, epsilon=1e-6)
SHAPES = {
    "qkv": ((ATTENTION.heads + 2 * ATTENTION.kv_heads) * ATTENTION.dim, HIDDEN),
    "output": (HIDDEN, ATTENTION.heads * ATTENTION.dim),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
MATRICES = {
    **{form: dict.fromkeys(SHAPES, form) for form in ("w4m", "w4", "w8", "f16", "f32")},
    "mixed": {"qkv": "w8", "output": "f16", "gate_up": "w4", "down": "f32"},
    "mixed otherwise": {"qkv": "f32", "output": "w4m", "gate_up": "f16", "down": "w4"},
    "zero points": {"qkv": "w4z32", "output": "w4z64", "gate_up": "w4z32", "down": "w4z32"},
}
ATTRIBUTES = {"hidden": HIDDEN, "intermediate": INTERMEDIATE, **ATTENTION.attributes}
ROWS = (1, 2, 7, 8, 9, 16, 17, 40)


def extras(rng):
    """Return attention's optional inputs."""
    sizes = {"q_norm": ATTENTION.dim, "k_norm": ATTENTION.dim, "sinks": ATTENTION.heads}
    return {name: rng.uniform(0.5, 1.5, size).astype(np.float32) for name, size in sizes.items()}


def key_constants(rng):
    """Return what keys of 4 bits are written with."""
    heads, dim = ATTENTION.kv_heads, ATTENTION.dim
    drawn = {
        "key_centre": rng.standard_normal((heads, dim)),
        "key_balance": rng.uniform(0.5, 2.0, (heads, dim)),
        "key_feedback": np.triu(0.15 * rng.standard_normal((heads, dim, dim)), 1),
    }
    return {name: array.astype(np.float32) for name, array in drawn.items()}


class Layer:
    """Weights, tables and a cache, to be run as one operator or as five.

    Args:
        formats: of the matrices.
        kv_format: of the cache.
        shapes: of the matrices, those of ``SHAPES`` by default.
        options: attributes and inputs of attention besides the plain ones.
    """

    def __init__(self, formats, kv_format="f32", *, shapes=None, **options):
        rng = np.random.default_rng(1)
        self.formats, self.shapes = formats, shapes or SHAPES
        self.attributes = {name: value for name, value in options.items() if not isinstance(value, np.ndarray)}
        self.weights = {name: random_matrix(rng, formats[name], *shape)[0] for name, shape in self.shapes.items()}
        self.norms = {name: rng.random(HIDDEN).astype(np.float32) for name in ("attention_norm", "mlp_norm")}
        angles = rng.random((CAPACITY, ATTENTION.dim // 2))
        self.cache = reference.empty_cache(ATTENTION, kv_format, CAPACITY)
        self.shared = {
            "row_map": rng.permutation(CAPACITY).astype(np.int32),
            "kv_formats": np.array([-1, FORMATS.index(kv_format)], np.int32),
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
            **{name: value for name, value in options.items() if isinstance(value, np.ndarray)},
        }
        self._ops = {}

    def place(self, past, parents):
        return {
            "cache": self.cache,
            "past_length": np.array([past], np.int32),
            "parents": np.array(parents, np.int32),
            **self.shared,
        }

    def whole(self, x, past, parents, *, changed=None, attributes=None, **options):
        """Run the one operator; ``changed`` inputs and ``attributes`` replace the layer's own."""
        numbers = {**ATTRIBUTES, **self.attributes, **{f"{name}_format": form for name, form in self.formats.items()}}
        inputs = {"x": x, **self.place(past, parents), **self.norms, **self.weights, **(changed or {})}
        return self._run("DecoderLayer", "whole", {**numbers, **(attributes or {})}, inputs, options)

    def in_parts(self, x, past, parents):
        qkv = self._product("qkv", x, norm_weight=self.norms["attention_norm"])
        inputs = {"qkv": qkv, **self.place(past, parents)}
        attended = self._run("SpecAttention", "attention", {**ATTENTION.attributes, **self.attributes}, inputs, {})
        middle = self._product("output", attended, residual=x)
        hidden = self._product("gate_up", middle, activation="swiglu", norm_weight=self.norms["mlp_norm"])
        return self._product("down", hidden, residual=middle)

    def _product(self, name, x, activation="none", numbers=None, **more):
        rows, columns = self.shapes[name]
        attributes = {"format": self.formats[name], "out_features": rows, "in_features": columns}
        attributes |= {"epsilon": ATTENTION.epsilon, "activation": activation, **(numbers or {})}
        return self._run("QuantLinear", name, attributes, {"x": x, "weight": self.weights[name], **more}, {})

    def _run(self, op, name, attributes, inputs, options):
        key = (name, *attributes.items(), *options.items(), *inputs)
        if key not in self._ops:
            self._ops[key] = SingleOp(op, attributes, inputs, **options)
        return self._ops[key].run_in_place(**inputs)[0]


def random_rows(rng, count):
    return (rng.standard_normal((count, HIDDEN)) * 2).astype(np.float32)


def chain(count):
    return list(range(-1, count - 1))


def passes(starts=(0, 100, 300)):
    """Rows, where they stand and what they follow: a prompt in pieces; then behind parts of it, chains and trees.

    Trees at 250 end behind the first 256 positions, which are summed up apart from those that follow.
    """
    rng = np.random.default_rng(2)
    for past, count in ((0, 130), (130, 130), (260, 40)):
        yield random_rows(rng, count), past, chain(count)
    for past in (*starts, 250):
        for count in ROWS:
            yield random_rows(rng, count), past, chain(count)
            yield random_rows(rng, count), past, [int(rng.integers(-1, i)) if i else -1 for i in range(count)]


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("formats", MATRICES)
def test_bits_are_those_of_five_operators(formats, kv_format):
    whole, parts = Layer(MATRICES[formats], kv_format), Layer(MATRICES[formats], kv_format)
    threads = cycle([1, 2, 3, 4, 3])  # 5 of them, so that chains and trees, which take turns, meet them all
    # Products do not know the cache's format, nor attention the matrices': all passes for each, fewer for all pairs.
    is_thorough = list(MATRICES).index(formats) % len(FORMATS) == FORMATS.index(kv_format) % len(MATRICES)
    for x, past, parents in passes() if is_thorough else passes(starts=[]):
        count = next(threads)
        found, expected = whole.whole(x, past, parents, threads=count), parts.in_parts(x, past, parents)
        assert np.isfinite(expected).all()
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents, count)
    assert whole.cache.tobytes() == parts.cache.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_attributes_and_inputs_of_attention_count(threads):
    options = {**extras(np.random.default_rng(3)), "window": 70, "softcap": 3.0, "interleaved": 1}
    whole, parts = (Layer(MATRICES["mixed"], "int8", **options) for _ in range(2))
    plain = Layer(MATRICES["mixed"], "int8")
    for x, past, parents in passes():
        found, expected = whole.whole(x, past, parents, threads=threads), parts.in_parts(x, past, parents)
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents)
        assert found.tobytes() != plain.whole(x, past, parents).tobytes()
    assert whole.cache.tobytes() == parts.cache.tobytes()


@pytest.mark.parametrize("kv_format", FORMATS)
def test_constants_of_keys_count(kv_format):
    constants = key_constants(np.random.default_rng(3))
    whole, parts = (Layer(MATRICES["w4m"], kv_format, **constants) for _ in range(2))
    plain = Layer(MATRICES["w4m"], kv_format)
    threads, counted = cycle([1, 2, 3, 4, 3]), False
    for x, past, parents in passes():
        count = next(threads)
        found, expected = whole.whole(x, past, parents, threads=count), parts.in_parts(x, past, parents)
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents, count)
        counted |= found.tobytes() != plain.whole(x, past, parents).tobytes()
    assert counted == kv_format.startswith("int4")
    assert whole.cache.tobytes() == parts.cache.tobytes()


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("formats", ["w4m", "mixed", "zero points"])
def test_every_instruction_set_gives_the_same_bits(formats, kv_format, isa):
    best, other = Layer(MATRICES[formats], kv_format), Layer(MATRICES[formats], kv_format)
    for x, past, parents in passes(starts=[]):
        found, expected = other.whole(x, past, parents, isa=isa, threads=2), best.whole(x, past, parents, isa=ISAS[0])
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents)
    assert other.cache.tobytes() == best.cache.tobytes()


INT = lambda *values: np.array(values, np.int32)  # noqa: E731
ZEROS = lambda *dims: np.zeros(dims, np.float32)  # noqa: E731
BAD_INPUTS = {
    "x of another width": ({"x": ZEROS(2, HIDDEN - 32)}, r"x is \[2, 64\]"),
    "x of other rows": ({"x": ZEROS(3, HIDDEN)}, "parents is"),
    "no rows": ({"x": ZEROS(0, HIDDEN), "parents": INT()}, "x has no rows"),
    "attention norm": ({"attention_norm": ZEROS(HIDDEN + 1)}, "attention_norm is"),
    "mlp norm": ({"mlp_norm": ZEROS(1)}, "mlp_norm is"),
    "parent of the future": ({"parents": INT(-1, 1)}, r"parents\[1\] is 1"),
    "past beyond the cache": ({"past_length": INT(CAPACITY - 1)}, "past_length 449 and 2 rows"),
    "negative past": ({"past_length": INT(-1)}, "past_length -1"),
    "row beyond the cache": ({"row_map": INT(*range(6), *[CAPACITY] * (CAPACITY - 6))}, "row_map holds 450"),
    "row given twice": ({"row_map": np.zeros(CAPACITY, np.int32)}, "row_map gives row 0"),
    "row map of another length": ({"row_map": INT(0, 1, 2)}, "row_map is"),
    "unknown kv format": ({"kv_formats": INT(0, 7)}, r"kv_formats\[1\] is 7"),
    "no format for the layer": ({"kv_formats": INT(0)}, "kv_formats has 1 entries"),
    "positions end": ({"cos": ZEROS(6, 16), "sin": ZEROS(6, 16)}, "position 6 has no row"),
    "sin unlike cos": ({"sin": ZEROS(CAPACITY, 15)}, "sin is"),
    "sinks of other heads": ({"sinks": ZEROS(5)}, "sinks is"),
    "centre of other heads": ({"key_centre": ZEROS(6, 32)}, r"key_centre is \[6, 32\]"),
    "centre beside sinks": ({"key_centre": ZEROS(2, 32)}, "key_centre is given beside sinks"),
    "balance of another head size": ({"key_balance": ZEROS(2, 31)}, "key_balance is"),
    "feedback without columns": ({"key_feedback": ZEROS(2, 32)}, "key_feedback is"),
}
BAD_ATTRIBUTES = {
    "intermediate cuts a tile": ({"intermediate": INTERMEDIATE - 8, "down_format": "f32"}, "intermediate is 152"),
    "hidden of 0": ({"hidden": 0}, "qkv_out_features 320 and qkv_in_features 0"),
    "hidden cuts a block": ({"hidden": HIDDEN - 16}, "qkv_in_features is 80"),
    "unknown format": ({"down_format": "w9"}, "down_format is 'w9'"),
    "heads": ({"num_heads": 5}, "num_heads is 5"),
    "head size": ({"head_dim": 31}, "head_dim is 31"),
    "window": ({"window": -1}, "window is -1"),
    "epsilon": ({"epsilon": float("nan")}, "epsilon is"),
    "scale": ({"scale": float("inf")}, "scale is not finite"),
}
SIZES_OF_ANOTHER = {
    "hidden": ({"hidden": HIDDEN + 32}, "x is"),
    "intermediate": ({"intermediate": INTERMEDIATE + 32}, "gate_up is"),
    "head size": ({"head_dim": 64}, "qkv is"),
    "format of qkv": ({"qkv_format": "w8"}, "qkv is"),
    "format of output": ({"output_format": "f16"}, "output is"),
    "format of gate_up": ({"gate_up_format": "f32"}, "gate_up is"),
    "format of down": ({"down_format": "w4"}, "down is"),
}


def must_refuse(layer, message, **wrong):
    """A run behind 5 rows, of which nothing may change."""
    rng = np.random.default_rng(4)
    layer.whole(random_rows(rng, 5), 0, chain(5))
    before = layer.cache.tobytes()
    with pytest.raises(Exception, match=f"DecoderLayer: {message}"):
        layer.whole(random_rows(rng, 2), 5, chain(2), **wrong)
    assert layer.cache.tobytes() == before


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_wrong_inputs_are_errors_and_change_nothing(what):
    changed, message = BAD_INPUTS[what]
    layer = Layer(MATRICES["w4m"], **extras(np.random.default_rng(3)))
    must_refuse(layer, message, changed=changed)
    assert np.isfinite(layer.whole(np.ones((2, HIDDEN), np.float32), 5, chain(2))).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_matrices_of_another_shape_are_errors(name, axis):
    layer = Layer(MATRICES["w4m"])
    shorter = np.ascontiguousarray(np.delete(layer.weights[name], -1, axis))
    must_refuse(layer, rf"{name} is \[", changed={name: shorter})


@pytest.mark.parametrize("shape", [(2, 2, CAPACITY, 127), (2, 1, CAPACITY, 128), (1, 2, CAPACITY, 128)])
def test_caches_of_another_shape_are_errors(shape):
    layer = Layer(MATRICES["w4m"])
    other = np.zeros(shape, np.uint8)
    must_refuse(layer, "cache", changed={"cache": other})
    assert not other.any()


@pytest.mark.parametrize("what", BAD_ATTRIBUTES)
def test_wrong_attributes_are_errors(what):
    attributes, message = BAD_ATTRIBUTES[what]
    must_refuse(Layer(MATRICES["w4m"]), message, attributes=attributes)


@pytest.mark.parametrize("what", SIZES_OF_ANOTHER)
def test_attributes_of_another_layer_are_errors(what):
    attributes, message = SIZES_OF_ANOTHER[what]
    must_refuse(Layer(MATRICES["w4m"]), message, attributes=attributes)
