from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from edge_rt.errors import ConfigError
from edge_rt.package.sampling import Sampling, SamplingAdvice
from edge_rt.runtime.config import GenerationConfig, GenerationOptions

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_tokens", value) for value in (0, -1, 1.5, "3", True)],
        *[("temperature", value) for value in (-0.1, 100.1, NAN, INF, "1", True)],
        *[("top_k", value) for value in (-1, 0.5, "2")],
        *[("top_p", value) for value in (0, -0.5, 1.01, NAN)],
        *[("min_p", value) for value in (-0.1, 1.0, NAN)],
        *[("repetition_penalty", value) for value in (0, 0.001, 101, NAN)],
        *[("presence_penalty", value) for value in (-101, 101, NAN, "0")],
        *[("frequency_penalty", value) for value in (-101, 101, INF)],
        *[("logit_bias", value) for value in ({-1: 1.0}, {"a": 1.0}, {1: NAN}, {1: 20000.0}, {True: 1.0}, [1], None)],
        *[("seed", value) for value in (-1, 1 << 64, 1.5, "7")],
        *[("repetition_guard", value) for value in (None, 1, "on")],
        *[("stop", value) for value in ("", ("a", ""), (5,), 5, None)],
    ],
)
def test_out_of_range(name, value):
    with pytest.raises(ConfigError, match=f"The option '{name}' is out of range"):
        GenerationConfig(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": None},
        {"temperature": 0},
        {"temperature": 100},
        {"top_p": 1},
        {"min_p": 0},
        {"seed": (1 << 64) - 1},
        {"logit_bias": {0: -1e4, 5: 3}},
    ],
)
def test_the_ends_of_the_ranges(options):
    config = GenerationConfig(**options)
    assert {name: getattr(config, name) for name in options} == options


def test_an_unknown_option_is_answered_with_a_known_one():
    with pytest.raises(ConfigError, match=r"GenerationConfig has no option 'temprature'.*Did you mean 'temperature'"):
        GenerationConfig(temprature=1.0)
    with pytest.raises(ConfigError, match=r"with_options has no option 'max_new_tokens'.*Did you mean 'max_tokens'"):
        GenerationConfig().with_options(max_new_tokens=1)


def test_type_checkers_know_the_same_options():
    assert set(GenerationOptions.__annotations__) == {entry.name for entry in dataclasses.fields(GenerationConfig)}


def test_one_stop_text_need_not_be_in_a_list():
    assert GenerationConfig(stop="END").stop == ("END",)
    assert GenerationConfig(stop=["a", "b"]).stop == ("a", "b")


def test_with_options_replaces_and_checks():
    config = GenerationConfig(seed=5)
    assert config.with_options(top_k=3) == GenerationConfig(seed=5, top_k=3)
    with pytest.raises(ConfigError):
        config.with_options(top_k=-3)


def test_a_bias_cannot_be_changed_from_outside():
    bias = {1: 2.0}
    config = GenerationConfig(logit_bias=bias)
    bias[1] = 9.0
    assert config.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        config.logit_bias[1] = 9.0


@pytest.mark.parametrize("copied", [lambda config: pickle.loads(pickle.dumps(config)), copy.deepcopy])
def test_options_reach_another_process(copied):
    config = GenerationConfig(seed=5, stop="END", logit_bias={1: 2.0})
    again = copied(config)
    assert again == config
    with pytest.raises(TypeError):
        again.logit_bias[1] = 9.0


class TestSampling:
    ADVICE = SamplingAdvice(temperature=0.2, top_p=0.9, repetition_penalty=1.1)

    def test_without_advice_the_defaults_hold(self):
        assert GenerationConfig().sampling() == Sampling(
            temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.0
        )

    def test_advice_comes_before_the_defaults(self):
        found = GenerationConfig().sampling(self.ADVICE)
        assert found == Sampling(temperature=0.2, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1)

    def test_what_is_asked_for_comes_before_advice(self):
        found = GenerationConfig(top_p=1.0, min_p=0, repetition_penalty=1.0).sampling(self.ADVICE)
        assert found == Sampling(temperature=0.2, top_k=40, top_p=1.0, min_p=0, repetition_penalty=1.0)

    def test_greedy_takes_no_advice(self):
        assert GenerationConfig(temperature=0).sampling(self.ADVICE).repetition_penalty == 1.0

    def test_greedy_that_is_advised_keeps_the_advice_beside_it(self):
        advice = SamplingAdvice(temperature=0.0, repetition_penalty=1.1)
        assert GenerationConfig().sampling(advice).repetition_penalty == 1.1


@pytest.mark.parametrize("other", [{"tool_choice": "required"}, {"regex": "a"}, {"grammar": 'start: "a"'}], ids=str)
def test_spaces_are_for_response_formats(other):
    assert GenerationConfig(json_spaces=True).with_options(response_format={"type": "object"}).json_spaces
    with pytest.raises(ConfigError, match=f"'{next(iter(other))}' and 'json_spaces' exclude each other"):
        GenerationConfig(json_spaces=True, **other)
