"""What a checkpoint says of how its tokens are best chosen."""

from __future__ import annotations

import json

import pytest

from edge_rt.errors import InvalidModelFile
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.sampling_advice import MAX_BESIDE_BYTES, read_advice
from edge_rt.package.sampling import SamplingAdvice
from tests.helpers.gguf_factory import write_llama_gguf


@pytest.fixture
def advice_of(tmp_path):
    """Read the advice of a checkpoint with such keys, and such a file of transformers beside it."""

    def read(keys=None, beside=None):
        path = tmp_path / "m.gguf"
        write_llama_gguf(path, extra_metadata={f"general.sampling.{key}": value for key, value in (keys or {}).items()})
        if beside is not None:
            text = beside if isinstance(beside, str) else json.dumps(beside)
            (tmp_path / "generation_config.json").write_text(text)
        return read_advice(read_header(path))

    return read


def test_a_checkpoint_may_say_nothing(advice_of):
    assert advice_of() is None


def test_keys_of_the_file_are_read_as_they_were_meant(advice_of):
    keys = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "penalty_repeat": 1.05, "mirostat": 0}
    assert advice_of(keys) == SamplingAdvice(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.05)


def test_a_penalty_for_no_token_is_none(advice_of):
    assert advice_of({"temp": 0.6, "penalty_repeat": 1.1, "penalty_last_n": 0}) == SamplingAdvice(temperature=0.6)


def test_below_zero_is_off(advice_of):
    assert advice_of({"temp": -1.0, "min_p": -1.0}) == SamplingAdvice(temperature=0.0, min_p=0.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", 1000.0), ("temp", "hot"), ("temp", float("nan")), ("top_k", 0.5), ("top_p", 0.0), ("top_p", 1.5),
     ("min_p", 1.0), ("penalty_repeat", 0.0), ("penalty_last_n", "all")],
)  # fmt: skip
def test_a_key_that_is_wrong_is_refused(key, value, advice_of):
    with pytest.raises(InvalidModelFile, match=rf"general\.sampling\.{key}"):
        advice_of({key: value})


def test_a_file_beside_is_read_where_the_checkpoint_says_nothing(advice_of):
    beside = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "min_p": None,
    }
    found = SamplingAdvice(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)
    assert advice_of(beside=beside) == found
    assert advice_of({"temp": 0.5}, beside) == SamplingAdvice(temperature=0.5)


@pytest.mark.parametrize("keys", [{"top_k": -1}, None])
def test_a_negative_top_k_keeps_all_tokens_wherever_it_stands(keys, advice_of):
    found = advice_of(keys) if keys else advice_of(beside={"top_k": -1})
    assert found == SamplingAdvice(top_k=0)


@pytest.mark.parametrize("beside", [{}, {"eos_token_id": 2}, {"do_sample": False, "temperature": 0.7}])
def test_a_file_beside_may_say_nothing(beside, advice_of):
    assert advice_of(beside=beside) is None


@pytest.mark.parametrize(
    "beside",
    [
        "{",
        "[]",
        "[" * 100_000,
        " " * (MAX_BESIDE_BYTES + 1),
        {"temperature": -1},
        {"top_k": "all"},
        {"top_p": 0},
        {"top_p": 10**400},
    ],
    ids=["cut", "array", "deep", "long", "temperature", "top_k", "top_p", "digits"],
)
def test_a_file_beside_that_is_wrong_is_refused(beside, advice_of):
    with pytest.raises(InvalidModelFile, match=r"generation_config\.json beside the checkpoint"):
        advice_of(beside=beside)
