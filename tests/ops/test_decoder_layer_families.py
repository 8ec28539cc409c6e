"""DecoderLayer for decoders other than llama's: it gives the bits of the operators that it is made of."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest

from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS
from tests.ops.test_decoder_layer import (
    ATTENTION,
    CAPACITY,
    HIDDEN,
    INTERMEDIATE,
    MATRICES,
    SHAPES,
    Layer,
    chain,
    key_constants,
    must_refuse,
    passes,
    random_rows,
)

pytestmark = [needs_native, pytest.mark.own_pools]

HEADS, KV_HEADS, DIM = ATTENTION.heads, ATTENTION.kv_heads, ATTENTION.dim
QKV = SHAPES["qkv"][0]
BIASES = ("qkv_bias", "output_bias", "gate_up_bias", "down_bias")
POST_NORMS = ("attention_post_norm", "mlp_post_norm")
NORM_BIASES = ("attention_norm_bias", "mlp_norm_bias")
LENGTHS = {
    "qkv_bias": QKV,
    "output_bias": HIDDEN,
    "down_bias": HIDDEN,
    **dict.fromkeys((*POST_NORMS, *NORM_BIASES), HIDDEN),
    "query_scale": CAPACITY,
    "sinks": HEADS,
}
OF_ATTENTION = ("rotate", "norm_after_rotation", "window", "softcap", "interleaved")
# Attributes; optional inputs that are given; lengths of the norms of queries and keys, if there are any.
FAMILIES = {
    "biased queries": ({}, ("qkv_bias",), None),
    "head norms": ({}, (), (DIM, DIM)),
    "post norms, geglu, softcap": ({"activation": "geglu", "softcap": 20.0, "window": 70}, POST_NORMS, None),
    "post norms, geglu, head norms": ({"activation": "geglu"}, POST_NORMS, (DIM, DIM)),
    "scaled residual": ({"residual_scale": 0.22}, (), None),
    "norms of results alone": ({"without_norms": True}, POST_NORMS, (HEADS * DIM, KV_HEADS * DIM)),
    "norms behind the rotation": ({"norm_after_rotation": 1}, (), (DIM, DIM)),
    "unrotated": ({"rotate": 0}, (), None),
    "scaled queries": ({"window": 70}, ("query_scale",), None),
    "relu2, layer norm": ({"activation": "relu2", "norm": "layer"}, NORM_BIASES, None),
    "relu2, biased": ({"activation": "relu2"}, BIASES, None),
    "layer norm without a bias": ({"norm": "layer"}, ("qkv_bias",), None),
    "layer norm of one sub-layer": ({}, ("mlp_norm_bias",), None),
    "all": (
        {
            "activation": "geglu",
            "norm": "layer",
            "residual_scale": -0.6,
            "softcap": 5.0,
            "interleaved": 1,
            "window": 90,
        },
        (*BIASES, *POST_NORMS, *NORM_BIASES, "query_scale", "sinks"),
        (HEADS * DIM, DIM),
    ),
}


class FamilyLayer(Layer):
    """A layer of one of the families above, to be run as one operator or as five."""

    def __init__(self, formats, kv_format, family, **constants):
        numbers, given, norms = FAMILIES[family]
        numbers = dict(numbers)
        is_normed = not numbers.pop("without_norms", False)
        self.activation = numbers.get("activation", "swiglu")
        gate_up = INTERMEDIATE if self.activation == "relu2" else 2 * INTERMEDIATE
        super().__init__(formats, kv_format, shapes={**SHAPES, "gate_up": (gate_up, HIDDEN)}, **constants)
        rng = np.random.default_rng(5)
        lengths = {**LENGTHS, "gate_up_bias": gate_up}
        drawn = {name: rng.uniform(-1.0, 1.5, lengths[name]).astype(np.float32) for name in given}
        for name, length in zip(("q_norm", "k_norm"), norms or (), strict=False):
            drawn[name] = rng.uniform(0.5, 1.5, length).astype(np.float32)
        of_attention = ("q_norm", "k_norm", "query_scale", "sinks")
        self.shared |= {name: drawn.pop(name) for name in of_attention if name in drawn}
        self.attributes, self.more = numbers, drawn
        if not is_normed:
            self.norms = {}

    def whole(self, x, past, parents, *, changed=None, **options):
        return super().whole(x, past, parents, changed={**self.more, **(changed or {})}, **options)

    def in_parts(self, x, past, parents):
        numbers = {name: self.attributes[name] for name in OF_ATTENTION if name in self.attributes}
        qkv = self._normed("qkv", x, "attention_norm")
        inputs = {"qkv": qkv, **self.place(past, parents)}
        attended = self._run("SpecAttention", "attention", {**ATTENTION.attributes, **numbers}, inputs, {})
        middle = self._added("output", attended, x, "attention_post_norm")
        hidden = self._normed("gate_up", middle, "mlp_norm", activation=self.activation)
        return self._added("down", hidden, middle, "mlp_post_norm")

    def _normed(self, name, x, norm, **options):
        inputs = {
            "norm_weight": self.norms.get(norm),
            "norm_bias": self.more.get(f"{norm}_bias"),
            "bias": self.more.get(f"{name}_bias"),
        }
        numbers = {"norm": self.attributes.get("norm", "rms")}
        given = {key: array for key, array in inputs.items() if array is not None}
        return self._product(name, x, numbers=numbers, **given, **options)

    def _added(self, name, x, residual, norm):
        inputs = {"residual": residual, "post_norm": self.more.get(norm), "bias": self.more.get(f"{name}_bias")}
        numbers = {"residual_scale": self.attributes.get("residual_scale", 1.0)}
        return self._product(
            name, x, numbers=numbers, **{key: array for key, array in inputs.items() if array is not None}
        )


def cases():
    """Every family with every form of matrices, formats of the cache in turns."""
    kv_formats = cycle(FORMATS)
    return [(family, form, next(kv_formats)) for family, form in product(FAMILIES, ("w4m", "mixed", "zero points"))]


@pytest.mark.parametrize(("family", "form", "kv_format"), cases())
def test_bits_are_those_of_five_operators(family, form, kv_format):
    whole, parts = (FamilyLayer(MATRICES[form], kv_format, family) for _ in range(2))
    plain = Layer(MATRICES[form], kv_format)
    threads = cycle([1, 2, 3, 4, 3])
    for x, past, parents in passes(starts=[100] if form == "w4m" else []):
        count = next(threads)
        found, expected = whole.whole(x, past, parents, threads=count), parts.in_parts(x, past, parents)
        assert np.isfinite(expected).all()
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents, count)
    assert whole.cache.tobytes() == parts.cache.tobytes()
    if whole.shapes == plain.shapes:
        x, past, parents = next(passes())
        assert plain.whole(x, past, parents).tobytes() != whole.whole(x, past, parents).tobytes()


@pytest.mark.parametrize("kv_format", ["int4", "int4x2", "int4x2_upper"])
@pytest.mark.parametrize("family", ["head norms", "norms of results alone", "unrotated", "scaled queries"])
def test_constants_of_keys_beside_them(family, kv_format):
    constants = key_constants(np.random.default_rng(3))
    whole, parts = (FamilyLayer(MATRICES["w4m"], kv_format, family, **constants) for _ in range(2))
    plain, counted = FamilyLayer(MATRICES["w4m"], kv_format, family), False
    for x, past, parents in passes(starts=[]):
        found, expected = whole.whole(x, past, parents, threads=2), parts.in_parts(x, past, parents)
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents)
        counted |= found.tobytes() != plain.whole(x, past, parents).tobytes()
    assert counted
    assert whole.cache.tobytes() == parts.cache.tobytes()


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_instruction_set_gives_the_same_bits(family, isa):
    best, other = (FamilyLayer(MATRICES["w4m"], "int8", family) for _ in range(2))
    for x, past, parents in passes(starts=[]):
        found, expected = other.whole(x, past, parents, isa=isa, threads=2), best.whole(x, past, parents, isa=ISAS[0])
        assert found.tobytes() == expected.tobytes(), (len(x), past, parents)
    assert other.cache.tobytes() == best.cache.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_the_same_bits_however_many_come_together(family):
    """A prompt at once, in pieces and row by row."""
    layers = [FamilyLayer(MATRICES["mixed"], "f16", family) for _ in range(3)]
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


ZEROS = lambda *dims: np.zeros(dims, np.float32)  # noqa: E731
BAD_INPUTS = {
    **{name: ({name: ZEROS(length + 1)}, rf"{name} is \[{length + 1}\]") for name, length in LENGTHS.items()},
    "gate_up_bias": ({"gate_up_bias": ZEROS(INTERMEDIATE)}, r"gate_up_bias is \[160\], must be \[320\]"),
    "row norm of other heads": ({"q_norm": ZEROS(2 * DIM)}, r"q_norm is \[64\], must be \[32\] or \[192\]"),
}


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_wrong_inputs_are_errors_and_change_nothing(what):
    changed, message = BAD_INPUTS[what]
    must_refuse(Layer(MATRICES["w4m"]), message, changed=changed)


@pytest.mark.parametrize("name", NORM_BIASES)
def test_a_bias_of_a_norm_that_is_not_there_is_an_error(name):
    layer = FamilyLayer(MATRICES["w4m"], "f32", "norms of results alone")
    must_refuse(layer, f"{name} is given without {name.removesuffix('_bias')}", changed={name: ZEROS(HIDDEN)})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activation": "none"}, "activation is 'none', must be one of swiglu, geglu, relu2"),
        ({"activation": "relu2"}, "gate_up is"),  # with rows of a gate
        ({"norm": "group"}, "norm is 'group', must be rms or layer"),
        ({"residual_scale": float("nan")}, "residual_scale is not finite"),
        ({"rotate": 2}, "rotate is 2, must be 0 or 1"),
        ({"norm_after_rotation": -1}, "norm_after_rotation is -1"),
    ],
)
def test_wrong_attributes_are_errors(attributes, message):
    must_refuse(Layer(MATRICES["w4m"]), message, attributes=attributes)
