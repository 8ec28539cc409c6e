"""Rotations of a package: what ``config.json`` says of them gives the same frequencies again."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.rope import Yarn, default_rope, divided_rope, linear_rope, llama3_divisors, yarn_rope
from edge_rt.train.draft_model.plain import rope_settings

CONTEXT = 8192


def llama3(base, dimensions, factor):
    divisors = llama3_divisors(base, dimensions, factor=factor, low=1.0, high=4.0, original_context=8192)
    return divided_rope(default_rope(base, dimensions), "llama3", divisors)


ROPES = {
    "plain": default_rope(10_000.0, 64),
    "plain with a large base": default_rope(1e6, 128),
    "a tiny head": default_rope(10_000.0, 16),
    "linear": linear_rope(10_000.0, 64, 4.0),
    "Llama 3.1": llama3(500_000.0, 128, 8.0),
    "Llama 3.2": llama3(500_000.0, 64, 32.0),
}


@pytest.mark.parametrize("name", ROPES)
def test_settings_give_the_frequencies_again(name):
    rope = ROPES[name]
    again = read_rope(ConfigReader("draft", rope_settings(rope)), rope.dimensions, CONTEXT)
    assert again.frequencies == pytest.approx(rope.frequencies, rel=1e-12)
    assert again.kind == rope.kind


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        (yarn_rope(10_000.0, 64, Yarn(4.0, 2048, 1.0)), "not known"),
        (default_rope(10_000.0, 64, magnitude=1.2), "factor"),
        (divided_rope(default_rope(10_000.0, 64), "other", np.linspace(1, 9, 32).tolist()), "not known"),
    ],
)
def test_other_rotations_are_refused(rope, words):
    with pytest.raises(UnsupportedModel, match=words):
        rope_settings(rope)
