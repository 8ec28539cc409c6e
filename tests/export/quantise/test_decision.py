"""Which type every matrix gets, from headers alone: every option, every kind of source."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_rt.errors import ConfigError
from edge_rt.export.quantise.decision import NESTED_TYPE, choose_weights
from edge_rt.export.quantise.grids import QUANTISABLE
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.package.weights_info import NESTED, WEIGHTS
from tests.helpers.arrays import tiny_decoder
from tests.helpers.ggml_blocks import tensor_of

LAYERS = 4
KINDS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
CONFIG = tiny_decoder(sizes={"num_layers": LAYERS})
FLOATS = ("F32", "F16", "BF16")


def source_of(type_name="F16", *, kind="gguf", inputs=512, types=None, has_head=True):
    """Return what of a checkpoint is asked for; ``inputs``: of all matrices, or a mapping from their kind."""
    names = [f"blk.{layer}.{part}.weight" for layer in range(LAYERS) for part in KINDS]
    names += ["token_embd.weight", *(["output.weight"] if has_head else [])]
    tensors = {}
    for name in names:
        part = name.split(".")[-2]
        width = inputs.get(part, 512) if isinstance(inputs, dict) else inputs
        tensors[name] = tensor_of((types or {}).get(part, type_name), 64, width, name)
    tensors["output_norm.weight"] = TensorInfo("output_norm.weight", (512,), 0, "F32", 0, 2048)
    return SimpleNamespace(kind=kind, tensors=tensors)


def types_of(choice, part):
    return [choice.types.get(f"blk.{layer}.{part}.weight") for layer in range(LAYERS)]


class TestInt4:
    @pytest.mark.parametrize("type_name", [*FLOATS, "Q8_0"])
    @pytest.mark.parametrize("kind", ["gguf", "safetensors"])
    def test_units_of_256(self, type_name, kind):
        choice = choose_weights(source_of(type_name, kind=kind), CONFIG, "int4")
        for part in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"):
            assert types_of(choice, part) == ["IQ4_XS"] * LAYERS
        for part in ("attn_v", "ffn_down"):
            assert sorted(types_of(choice, part)) == ["IQ4_XS", "IQ4_XS", "Q6_K", "Q6_K"]
        assert choice.types["token_embd.weight"] == choice.types["output.weight"] == "Q8_0"
        assert choice.quantises
        assert choice.name == "int4"

    def test_blocks_of_32(self):
        choice = choose_weights(source_of(inputs=96), CONFIG, "int4")
        assert types_of(choice, "attn_q") == ["IQ4_NL"] * LAYERS
        assert sorted(types_of(choice, "ffn_down")) == ["IQ4_NL", "IQ4_NL", "Q5_1", "Q5_1"]

    def test_widths_of_both_kinds(self):
        choice = choose_weights(source_of(inputs={"ffn_down": 1056}), CONFIG, "int4")
        assert set(types_of(choice, "ffn_down")) == {"IQ4_NL", "Q5_1"}
        assert set(types_of(choice, "attn_v")) == {"IQ4_XS", "Q6_K"}

    def test_widths_that_no_block_fits_keep_their_type(self):
        choice = choose_weights(source_of(inputs={"ffn_down": 100, "attn_q": 31}), CONFIG, "int4")
        assert types_of(choice, "ffn_down") == types_of(choice, "attn_q") == [None] * LAYERS
        assert [len(group.names) for group in choice.rivals] == [LAYERS]

    @pytest.mark.parametrize("type_name", ["Q4_K", "Q4_0", "Q5_1", "Q6_K", "IQ4_XS", "MXFP4"])
    def test_what_has_few_bits_stays(self, type_name):
        choice = choose_weights(source_of(type_name), CONFIG, "int4")
        assert not choice.types
        assert not choice.rivals
        assert not choice.quantises

    def test_a_file_of_several_types(self):
        choice = choose_weights(source_of("Q4_K", types={"ffn_down": "Q8_0", "token_embd": "F16"}), CONFIG, "int4")
        assert set(choice.types) == {f"blk.{layer}.ffn_down.weight" for layer in range(LAYERS)} | {"token_embd.weight"}

    def test_a_tied_head(self):
        choice = choose_weights(source_of(has_head=False), CONFIG, "int4")
        assert "output.weight" not in choice.types
        assert choice.types["token_embd.weight"] == "Q8_0"

    def test_where_tables_and_five_bits_take_eight(self):
        choice = choose_weights(source_of(), CONFIG, "int4", has_tables=False)
        assert set(choice.types.values()) == {"Q4_0", "Q8_0"}
        assert set(types_of(choice, "attn_q")) == {"Q4_0"}
        assert [(group.usual, group.better) for group in choice.rivals] == [("Q4_0", "Q8_0")] * 2
        assert choice.types["token_embd.weight"] == "Q8_0"

    def test_winners(self):
        choice = choose_weights(source_of(), CONFIG, "int4")
        names = ["blk.3.attn_v.weight", "blk.1.attn_v.weight", "blk.0.ffn_down.weight", "blk.2.ffn_down.weight"]
        won = choice.with_winners(names)
        assert {name for name, type_name in won.types.items() if type_name == "Q6_K"} == set(names)
        assert types_of(won, "attn_v") == ["IQ4_XS", "Q6_K", "IQ4_XS", "Q6_K"]
        assert types_of(won, "ffn_down") == ["Q6_K", "IQ4_XS", "Q6_K", "IQ4_XS"]
        assert types_of(won, "attn_q") == types_of(choice, "attn_q")
        assert won.rivals == choice.rivals


class TestFloats:
    @pytest.mark.parametrize("type_name", FLOATS)
    @pytest.mark.parametrize("wanted", ["f16", "f32"])
    def test_what_differs_becomes_that(self, type_name, wanted):
        choice = choose_weights(source_of(type_name, inputs=31), CONFIG, wanted)
        expected = {} if type_name == wanted.upper() else {name: wanted.upper() for name in matrices(source_of())}
        assert dict(choice.types) == expected
        assert not choice.quantises

    @pytest.mark.parametrize("wanted", ["f16", "f32", "int8"])
    @pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K"])
    def test_codes_stay(self, type_name, wanted):
        assert not choose_weights(source_of(type_name), CONFIG, wanted).types

    @pytest.mark.parametrize("type_name", FLOATS)
    def test_int8(self, type_name):
        choice = choose_weights(source_of(type_name, inputs={"ffn_up": 40, "attn_k": 32}), CONFIG, "int8")
        assert set(choice.types.values()) == {"Q8_0"}
        assert set(matrices(source_of())) - set(choice.types) == {f"blk.{n}.ffn_up.weight" for n in range(LAYERS)}
        assert choice.quantises

    @pytest.mark.parametrize("type_name", [*FLOATS, *QUANTISABLE])
    def test_keep(self, type_name):
        choice = choose_weights(source_of(type_name), CONFIG, "keep")
        assert not choice.types
        assert choice.name == "keep"


def matrices(source):
    return [name for name, tensor in source.tensors.items() if len(tensor.shape) == 2]


class TestDefault:
    @pytest.mark.parametrize(
        ("type_name", "kind", "types", "expected"),
        [
            ("F16", "gguf", {}, "keep"),
            ("F32", "gguf", {}, "keep"),
            ("Q4_K", "gguf", {}, "keep"),
            ("BF16", "safetensors", {}, "int4"),
            ("F32", "safetensors", {}, "int4"),
            ("BF16", "safetensors", {"ffn_up": "Q4_0"}, "keep"),
            ("Q4_0", "safetensors", {"token_embd": "F16"}, "keep"),
        ],
    )
    def test_folders_of_floats_alone_are_quantised(self, type_name, kind, types, expected):
        source = source_of(type_name, kind=kind, types=types)
        assert choose_weights(source, CONFIG) == choose_weights(source, CONFIG, expected)
        assert choose_weights(source, CONFIG).name == expected


class TestSize:
    @pytest.mark.parametrize("inputs", [512, 96])
    def test_ladders(self, inputs):
        choice = choose_weights(source_of(inputs=inputs), CONFIG, size=1000)
        ladder = ("IQ4_NL", "Q5_0", "Q5_1", "Q8_0") if inputs % 256 else ("IQ4_XS", "Q5_K", "Q6_K", "Q8_0")
        assert choice.ladders["blk.0.attn_q.weight"] == ladder
        assert choice.ladders["token_embd.weight"] == choice.ladders["output.weight"] == ladder[1:]
        assert {name: types[0] for name, types in choice.ladders.items()} == dict(choice.types)
        assert (choice.name, choice.size, choice.rivals) == ("size", 1000, ())
        assert set(choice.ladders) == set(matrices(source_of()))

    def test_what_cannot_be_chosen_has_no_ladder(self):
        source = source_of("Q4_K", types={"attn_v": "Q8_0", "ffn_up": "F32"}, inputs={"ffn_up": 100})
        choice = choose_weights(source, CONFIG, size=1000)
        assert set(choice.ladders) == {f"blk.{layer}.attn_v.weight" for layer in range(LAYERS)}

    @pytest.mark.parametrize("wanted", WEIGHTS)
    def test_not_with_a_type(self, wanted):
        with pytest.raises(ConfigError, match="do not go together"):
            choose_weights(source_of(), CONFIG, wanted, 1000)


@pytest.mark.parametrize("wanted", ["q4", "", "INT4", "size", "Q4_K"])
def test_unknown_types(wanted):
    with pytest.raises(ConfigError, match="Choose one of keep, int4, int8, nested8, f16, f32"):
        choose_weights(source_of(), CONFIG, wanted)


@pytest.mark.parametrize("options", [{"wanted": name} for name in WEIGHTS] + [{"size": 1}])
@pytest.mark.parametrize("inputs", [31, 32, 96, 256, 288, 512])
def test_chosen_types_fit_the_inputs(options, inputs):
    if options == {"wanted": NESTED} and inputs % 32:
        with pytest.raises(ConfigError, match="fewer bits for"):
            choose_weights(source_of(inputs=inputs), CONFIG, **options)
        return
    choice = choose_weights(source_of(inputs=inputs), CONFIG, **options)
    found = [*choice.types.values(), *(name for ladder in choice.ladders.values() for name in ladder)]
    assert all(tile_format(name).is_float or inputs % tile_format(name).unit_inputs == 0 for name in found)
    assert all(name in (*QUANTISABLE, NESTED_TYPE, *FLOATS) for name in found)
