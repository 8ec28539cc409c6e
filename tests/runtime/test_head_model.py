"""A model with a trained head: the text of plain decoding, whatever the head guesses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import ConfigError
from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import TILE_FORMATS
from edge_rt.export.weights.tiles import pack_rows
from edge_rt.package.drafter import DraftTarget
from edge_rt.package.drafter_tensors import head_tensors
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package
from edge_rt.runtime.speculation.arms import Arm
from tests.helpers.models import load_package
from tests.helpers.plain_answers import PROMPT, SAMPLING, TOKENS
from tests.helpers.small import FREE_ROWS, GREEDY
from tests.helpers.tiny_drafter import INFO, ids_bytes, write_drafter


def head_of(package, folder, *, seed=5, vocabulary=200):
    """Write a head with random weights whose guesses are tokens of the whole vocabulary."""
    manifest = open_package(package).manifest
    head = dataclasses.replace(INFO.head, formats=dict.fromkeys(("fc", "gate_up", "down"), "w4m"))
    head = dataclasses.replace(head, vocabulary_size=vocabulary)
    info = dataclasses.replace(INFO, target=DraftTarget.of(manifest), head=head)
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, (dtype, shape) in head_tensors(head, info.target.hidden_size).items():
        if dtype == "uint8":
            tiles, units, _ = shape
            rows = 16 * tiles
            scale = rng.uniform(0.01, 0.03, (rows, units)).astype(np.float16)
            codes = rng.integers(0, 16, (rows, 32 * units), np.uint8)
            found = Codes(codes, d=scale, m=(-7.5 * scale).astype(np.float16))
            tensors[name] = pack_rows(found, TILE_FORMATS["w4m"]).tobytes()
        elif dtype == "float32":
            # Large logits: the head is sure of its guesses.
            size = 40.0 if name == "output_norm" else 1.0
            tensors[name] = rng.uniform(0.5 * size, 1.5 * size, shape).astype("<f4").tobytes()
        else:
            tensors[name] = ids_bytes(rng.permutation(info.target.vocab_size)[:vocabulary].tolist())
    return write_drafter(folder, info, tensors)


@pytest.fixture(scope="module")
def drafter(native_package, tmp_path_factory):
    return head_of(native_package, tmp_path_factory.mktemp("drafter") / "head").path


@SAMPLING
@pytest.mark.parametrize("kv_format", KV_FORMATS["native"])
@pytest.mark.parametrize("mode", ["head", "auto"])
def test_the_text_is_that_of_plain_decoding(native_package, drafter, plain_answer, mode, kv_format, sampling):
    with load_package(native_package, kv=kv_format, spec=mode, drafter=drafter) as model:
        model.speculation.costs = FREE_ROWS
        result = model.generate(PROMPT, max_tokens=TOKENS, **sampling)
        assert result.token_ids == plain_answer(kv_format, sampling)
        assert result.spec.rows_drafted > 0
        assert mode == "auto" or "head" in result.spec.choices
        # Another turn goes on from the rows in the cache, where the last state is not known.
        assert model.generate(PROMPT, max_tokens=TOKENS, **sampling).token_ids == result.token_ids


def test_a_package_without_a_drafter_says_how_to_get_one(native_package):
    with pytest.raises(ConfigError, match="edge-rt train drafter"):
        load_package(native_package, spec="head")


def test_guesses_are_the_heads(native_package, drafter):
    """The head's own vocabulary and the prompt's tokens are all that is drafted."""
    steps = []
    with load_package(native_package, spec="head", drafter=drafter, spec_trace=steps.append) as model:
        model.speculation.costs = FREE_ROWS
        result = model.generate(PROMPT, max_tokens=TOKENS, **GREEDY)
    assert steps
    assert {step["arm"] for step in steps} <= {"head", "off"}
    assert result.spec.memory_bytes > 0


def test_memory_is_planned(native_package, drafter):
    with load_package(native_package, spec="off") as model:
        without = model.describe()
    with load_package(native_package, spec="head", drafter=drafter) as model:
        with_it = model.describe()
    assert with_it != without


@SAMPLING
@pytest.mark.parametrize("kv_format", ["f16", "int8"])
def test_a_head_and_exits_in_one_tree(agreeing, tmp_path, kv_format, sampling):
    """Hidden states are those of the last segment, with the same bits, and drafts of both kinds join."""
    head = head_of(agreeing.whole, tmp_path / "head").path
    with load_package(agreeing.whole, kv=kv_format, spec="off") as model:
        expected = model.generate(PROMPT, max_tokens=TOKENS, **sampling).token_ids
    for mode in ("auto", "head", "exit"):
        with load_package(agreeing.cut, kv=kv_format, spec=mode, drafter=None if mode == "exit" else head) as model:
            model.speculation.costs = FREE_ROWS
            if mode == "auto":
                # Suffix, recycling, head and exit.
                assert model.speculation.drafter(mode).arms[-1] == Arm("fusion", 0b1111)
            result = model.generate(PROMPT, max_tokens=TOKENS, **sampling)
            assert result.token_ids == expected
            assert mode == "exit" or result.spec.rows_drafted > 0
            assert model.generate(PROMPT, max_tokens=TOKENS, **sampling).token_ids == expected


def test_hidden_states_of_a_package_with_exits(agreeing):
    tokens = [(5 + 41 * i) % 419 for i in range(20)]
    found = []
    for path in (agreeing.whole, agreeing.cut):
        with load_package(path, kv="f16", spec="off", hidden=True) as model, model.passes() as (runner, cache):
            cache.truncate(0)
            with cache.reserve(20) as rows:
                found.append(runner.forward(tokens, rows.start, 7).hidden.copy())
    assert found[0].shape == (7, 64)
    assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))
    assert np.any(found[0])
