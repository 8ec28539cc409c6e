"""DecoderLayer of every family gives the bits of the operators that it is made of."""

from __future__ import annotations

from itertools import cycle, product, repeat

import numpy as np
import pytest

from tests.helpers.pairs import with_slow
from tests.ops.layer_cases import (
    BAD_INPUTS,
    CAPACITY,
    FAMILIES,
    HIDDEN,
    INTERMEDIATE,
    MATRICES,
    NORM_BIASES,
    SHAPES,
    ZEROS,
    Layer,
    chain,
    extras,
    key_constants,
    passes,
    random_rows,
)
from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS

pytestmark = [needs_native, pytest.mark.own_pools]

CODED = FORMATS[4:]
"""Formats of the cache whose keys the constants apply to."""
OTHERS = [family for family in FAMILIES if family != "llama"]
FORMS = ("w4m", "mixed", "zero points")
# Family, form of matrices, format of the cache. Products do not know the cache's format, nor attention the matrices'.
TABLE = [
    *product(["llama"], MATRICES, FORMATS),
    *((*case, kv_format) for case, kv_format in zip(product(OTHERS, FORMS), cycle(FORMATS))),
]


def place_of(form, kv_format):
    return list(MATRICES).index(form), FORMATS.index(kv_format)


def is_thorough(form, kv_format):
    """Whether all passes are computed: for each form and each format, not for all pairs."""
    of_form, of_format = place_of(form, kv_format)
    return of_form % len(FORMATS) == of_format % len(MATRICES)


SOME_OF_TABLE = [
    (family, *pair)
    for family, *pair in TABLE
    if family != "llama" or is_thorough(*pair) or sum(place_of(*pair)) % 3 == 0
]
BESIDE_CONSTANTS = [
    *product(["llama"], FORMATS),
    *product(["head norms", "norms of results alone", "unrotated", "scaled queries"], CODED),
]


def same_in_parts(whole, parts, starts):
    """Compare all passes; threads take turns so that chains and trees, which do as well, meet all numbers of them."""
    threads = cycle([1, 2, 3, 4, 3])
    for x, past, parents in passes(starts):
        count = next(threads)
        found, expected = whole.whole(x, past, parents, threads=count), parts.in_parts(x, past, parents)
        assert np.isfinite(expected).all()
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents, count)
    assert whole.cache.tobytes() == parts.cache.tobytes()


def first_pass(layer):
    return layer.whole(*next(passes())).tobytes()


@pytest.mark.parametrize(("family", "form", "kv_format"), with_slow(TABLE, SOME_OF_TABLE))
def test_bits_are_those_of_five_operators(family, form, kv_format):
    whole, parts, plain = (Layer(MATRICES[form], kv_format, name) for name in (family, family, "llama"))
    if family != "llama":
        same_in_parts(whole, parts, [100] if form == "w4m" else [])
    else:
        same_in_parts(whole, parts, (0, 100, 300) if is_thorough(form, kv_format) else [])
    if family != "llama" and whole.shapes == plain.shapes:
        assert first_pass(plain) != first_pass(whole)


@pytest.mark.parametrize(("family", "kv_format"), BESIDE_CONSTANTS)
def test_bits_are_those_of_five_operators_with_constants_of_keys(family, kv_format):
    constants = key_constants(np.random.default_rng(3))
    whole, parts = (Layer(MATRICES["w4m"], kv_format, family, **constants) for _ in range(2))
    plain = Layer(MATRICES["w4m"], kv_format, family)
    same_in_parts(whole, parts, [0, 100] if family == "llama" else [])
    assert (first_pass(plain) != first_pass(whole)) == (kv_format in CODED)


@pytest.mark.parametrize(
    ("family", "form", "kv_format"),
    with_slow(
        [*product(["llama"], FORMS, FORMATS), *((family, "w4m", "int8") for family in OTHERS)],
        [*zip(repeat("llama"), cycle(FORMS), FORMATS), *((family, "w4m", "int8") for family in OTHERS)],
    ),
)
def test_bits_do_not_depend_on_threads_or_the_instruction_set(family, form, kv_format):
    best, *others = (Layer(MATRICES[form], kv_format, family) for _ in ISAS)
    for x, past, parents in passes(starts=[]):
        expected = best.whole(x, past, parents, isa=ISAS[0])
        for layer, isa in zip(others, ISAS[1:], strict=True):
            found = layer.whole(x, past, parents, isa=isa, threads=2)
            assert found.tobytes() == expected.tobytes(), (len(x), past, parents, isa)
    for layer in others:
        assert layer.cache.tobytes() == best.cache.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_how_a_prompt_is_cut(family):
    """At once, in pieces and row by row."""
    layers = [Layer(MATRICES["mixed"], "f16", family) for _ in range(3)]
    x = random_rows(np.random.default_rng(6), 60)
    wanted = layers[0].whole(x, 0, chain(60), threads=2)
    for layer, size in zip(layers[1:], (17, 1), strict=True):
        found = [layer.whole(x[at : at + size], at, chain(len(x[at : at + size]))) for at in range(0, 60, size)]
        assert np.concatenate(found).tobytes() == wanted.tobytes()


def test_attributes_by_default():
    """What a graph leaves out is what it gives as the default."""
    layer = Layer(MATRICES["w4m"])
    x = random_rows(np.random.default_rng(7), 9)
    given = {"activation": "swiglu", "norm": "rms", "residual_scale": 1.0, "rotate": 1, "norm_after_rotation": 0}
    first = layer.whole(x, 0, chain(9))
    assert layer.whole(x, 0, chain(9), attributes=given).tobytes() == first.tobytes()


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
    "activation": ({"activation": "none"}, "activation is 'none', must be one of swiglu, geglu, relu2"),
    "activation without a gate": ({"activation": "relu2"}, "gate_up is"),
    "norm": ({"norm": "group"}, "norm is 'group', must be rms or layer"),
    "residual scale": ({"residual_scale": float("nan")}, "residual_scale is not finite"),
    "gates": ({"gated": 2}, "gated is 2, must be 0 or 1"),
    "gates of another layer": ({"gated": 1}, r"qkv is"),
    "limit": ({"clip": -1.0}, "clip is -1, must be finite and not below 0"),
    "rotate": ({"rotate": 2}, "rotate is 2, must be 0 or 1"),
    "norm behind the rotation": ({"norm_after_rotation": -1}, "norm_after_rotation is -1"),
    "hidden of another layer": ({"hidden": HIDDEN + 32}, "x is"),
    "intermediate of another layer": ({"intermediate": INTERMEDIATE + 32}, "gate_up is"),
    "head size of another layer": ({"head_dim": 64}, "qkv is"),
    "format of qkv": ({"qkv_format": "w8"}, "qkv is"),
    "format of output": ({"output_format": "f16"}, "output is"),
    "format of gate_up": ({"gate_up_format": "f32"}, "gate_up is"),
    "format of down": ({"down_format": "w4"}, "down is"),
}
BAD_CACHES = [(2, 2, CAPACITY, 127), (2, 1, CAPACITY, 128), (1, 2, CAPACITY, 128)]


def must_refuse(layer, message, **wrong):
    """A run behind 5 rows, of which nothing may change; without the mistake there is one."""
    rng = np.random.default_rng(4)
    layer.whole(random_rows(rng, 5), 0, chain(5))
    before = layer.cache.tobytes()
    with pytest.raises(Exception, match=f"DecoderLayer: {message}"):
        layer.whole(random_rows(rng, 2), 5, chain(2), **wrong)
    assert layer.cache.tobytes() == before
    assert np.isfinite(layer.whole(np.ones((2, HIDDEN), np.float32), 5, chain(2))).all()


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_wrong_inputs(what):
    changed, message = BAD_INPUTS[what]
    must_refuse(Layer(MATRICES["w4m"], **extras(np.random.default_rng(3))), message, changed=changed)


@pytest.mark.parametrize("what", BAD_ATTRIBUTES)
def test_wrong_attributes(what):
    attributes, message = BAD_ATTRIBUTES[what]
    must_refuse(Layer(MATRICES["w4m"]), message, attributes=attributes)


@pytest.mark.parametrize("name", NORM_BIASES)
def test_a_bias_of_a_norm_that_is_not_there(name):
    layer = Layer(MATRICES["w4m"], "f32", "norms of results alone")
    must_refuse(layer, f"{name} is given without {name.removesuffix('_bias')}", changed={name: ZEROS(HIDDEN)})


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_matrices_of_another_shape(name, axis):
    layer = Layer(MATRICES["w4m"])
    shorter = np.ascontiguousarray(np.delete(layer.weights[name], -1, axis))
    must_refuse(layer, rf"{name} is \[", changed={name: shorter})


@pytest.mark.parametrize("shape", BAD_CACHES)
def test_caches_of_another_shape(shape):
    other = np.zeros(shape, np.uint8)
    must_refuse(Layer(MATRICES["w4m"]), "cache", changed={"cache": other})
    assert not other.any()
