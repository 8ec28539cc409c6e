"""What ``config.json`` may say of rotations, in two ways and in two places; what contradicts itself is refused."""

from __future__ import annotations

from typing import ClassVar

import pytest

from edge_rt.errors import EdgeRTError, InvalidModelFile, UnsupportedModel
from edge_rt.export.families.rope import Yarn, default_rope, divided_rope, llama3_divisors, yarn_rope, yarn_temperature
from edge_rt.export.opening import open_checkpoint
from tests.helpers.configs import SMALL, described, small
from tests.helpers.family_cases import load_case, write_gguf

YARN = {"rope_type": "yarn", "factor": 4.0}
BANDS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "factor": 2.0}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "granite", "mistral", "olmo2"])
@pytest.mark.parametrize("where", ["outside", "within"])
def test_a_share_of_a_head_in_a_family_that_rotates_all_of_it(model_type, where):
    for share in (0.5, 1.0):
        key = {"partial_rotary_factor": share}
        keys = key if where == "outside" else {"rope_parameters": DEFAULT | key}
        if share == 1.0:
            assert small(model_type, **keys).ropes[0].dimensions == 32
            continue
        with pytest.raises(UnsupportedModel, match="partial_rotary_factor is not 1"):
            small(model_type, **keys)


@pytest.mark.parametrize(
    ("outer", "inner", "expected"), [(None, None, 512), (None, 64, 64), (96, 64, 96), (96, None, 96)]
)
@pytest.mark.parametrize("way", ["rope_scaling", "rope_parameters"])
def test_the_context_of_training(outer, inner, expected, way):
    """The outer key comes before the inner one; without either it is the whole context."""
    for scaling in (YARN, BANDS):
        found = small("llama", original_max_position_embeddings=outer,
                      **{way: scaling | {"original_max_position_embeddings": inner}}).ropes  # fmt: skip
        if scaling is YARN:
            assert found == (yarn_rope(10000.0, 32, Yarn(4.0, expected, yarn_temperature(4.0))),)
        else:
            divisors = llama3_divisors(10000.0, 32, factor=8.0, low=1.0, high=4.0, original_context=expected)
            assert found == (divided_rope(default_rope(10000.0, 32), "llama3", divisors),)


def test_a_context_of_training_that_is_too_short_for_yarn():
    with pytest.raises(UnsupportedModel, match="original context of 1 tokens is too short"):
        small("llama", rope_scaling=YARN | {"original_max_position_embeddings": 1})


@pytest.mark.parametrize("way", ["rope_scaling", "rope_parameters"])
class TestHostileValues:
    @pytest.mark.parametrize("scaling", [YARN, BANDS])
    @pytest.mark.parametrize("tokens", [0.5, 0, -1, True, "64", [64]])
    def test_a_context_of_training_that_is_no_number_of_tokens(self, way, scaling, tokens):
        with pytest.raises(InvalidModelFile, match="'original_max_position_embeddings' is"):
            small("llama", **{way: scaling | {"original_max_position_embeddings": tokens}})

    @pytest.mark.parametrize("key", ["rope_type", "type"])
    @pytest.mark.parametrize("kind", [[], [1], {}, {"a": 1}, 7, False])
    def test_a_kind_that_is_no_text(self, way, key, kind):
        with pytest.raises(InvalidModelFile, match=f"'{key}' is"):
            small("llama", **{way: {key: kind, "factor": 2.0}})

    @pytest.mark.parametrize("settings", [7, "x", [], [1], True, False])
    def test_no_object(self, way, settings):
        for model_type in ("llama", "phi3"):
            with pytest.raises(InvalidModelFile, match=f"'{way}' is"):
                small(model_type, **{way: settings})

    @pytest.mark.parametrize("flag", [0, 1, "false", [], {}])
    def test_a_border_that_is_cut_or_not(self, way, flag):
        with pytest.raises(EdgeRTError, match="truncate"):
            small("llama", **{way: YARN | {"truncate": flag}})

    def test_two_elements_that_dynamic_scaling_cannot_stretch(self, way):
        with pytest.raises(UnsupportedModel, match="2 elements"):
            small("llama", head_dim=2, **{way: {"rope_type": "dynamic", "alpha": 2.0}})


def test_a_context_of_training_written_as_a_float():
    found, expected = (
        small("llama", rope_parameters=YARN | {"original_max_position_embeddings": tokens}) for tokens in (64.0, 64)
    )
    assert found == expected


class TestTwoObjects:
    def test_that_agree(self):
        keys = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5000.0}
        both = small("llama", rope_parameters=LINEAR | {"rope_theta": 5000.0}, **keys)
        assert both == small("llama", **keys)

    @pytest.mark.parametrize(
        "parameters",
        [DEFAULT, LINEAR | {"rope_theta": 10000.0}, YARN | {"rope_theta": 5000.0}, LINEAR | {"factor": 3.0}],
    )
    def test_that_do_not(self, parameters):
        with pytest.raises(UnsupportedModel, match="rope_scaling and rope_parameters differ in"):
            small("llama", rope_scaling=LINEAR, rope_theta=5000.0, rope_parameters=parameters)

    @pytest.mark.parametrize("model_type", ["gemma3_text", "olmo3"])
    def test_of_types_of_layers(self, model_type):
        nested = {"full_attention": LINEAR | {"rope_theta": 5000.0}, "sliding_attention": DEFAULT}
        found = small(model_type, rope_parameters=nested, rope_scaling=LINEAR)
        assert found == small(model_type, rope_parameters=nested)
        with pytest.raises(UnsupportedModel, match="differ in factor"):
            small(model_type, rope_parameters=nested, rope_scaling=LINEAR | {"factor": 3.0})


@pytest.mark.parametrize(("model_type", "full", "sliding"), [("gemma3_text", 1e6, 1e4), ("olmo3", 5e5, 5e5)])
class TestTypesOfLayers:
    def test_null_stands_for_the_defaults(self, model_type, full, sliding):
        nested = {"full_attention": None, "sliding_attention": None}
        assert small(model_type, rope_parameters=nested).ropes == (default_rope(full, 32), default_rope(sliding, 32))

    def test_one_object_for_all(self, model_type, full, sliding):
        with pytest.raises(UnsupportedModel, match="no object for each type of layer"):
            small(model_type, rope_parameters=DEFAULT)


class TestMinistral:
    def test_what_transformers_assumes(self):
        parameters = YARN | {"original_max_position_embeddings": 64}
        left_out = {
            key: value for key, value in SMALL.items() if key not in ("head_dim", "num_key_value_heads", "rms_norm_eps")
        }
        found = described(
            {**left_out, "num_attention_heads": 8, "model_type": "ministral3", "rope_parameters": parameters}
        )
        assert (found.head_dim, found.num_kv_heads, found.norm_epsilon) == (128, 8, 1e-5)

    def test_the_context_within_the_rope_settings_does_not_count(self):
        parameters = YARN | {"original_max_position_embeddings": 64}
        more = parameters | {"max_position_embeddings": 512}
        assert small("ministral3", rope_parameters=more) == small("ministral3", rope_parameters=parameters)

    def test_without_rotations(self):
        with pytest.raises(UnsupportedModel, match="rope_parameters is missing"):
            small("ministral3")


class TestLongrope:
    FACTORS: ClassVar = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}

    def test_the_context_of_training(self):
        (rope,) = small("phi3", max_position_embeddings=8192, rope_scaling=self.FACTORS).ropes
        assert rope.short_context == 4096
        inner = self.FACTORS | {"original_max_position_embeddings": 64}
        with pytest.raises(UnsupportedModel, match="original_max_position_embeddings is 64 within"):
            small("phi3", max_position_embeddings=8192, rope_scaling=inner)

    @pytest.mark.parametrize("lacking", ["short", "long"])
    def test_a_file_with_one_of_both_tensors(self, lacking, tmp_path):
        write_gguf(tmp_path / "m.gguf", load_case("phi3_long"), drop_tensors=(f"rope_factors_{lacking}.weight",))
        with pytest.raises(UnsupportedModel, match="not both"):
            open_checkpoint(tmp_path / "m.gguf")
