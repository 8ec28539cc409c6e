"""Blocks made up at random: a few of what ``tests/fuzz_blocks.py`` takes 100,000 of."""

from __future__ import annotations

import pytest

from tests import fuzz_blocks
from tests.helpers.ggml_blocks import BLOCK_TYPES


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_exact_or_refused(type_name):
    counts = fuzz_blocks.run(type_name, 100, 2)
    assert counts["good: read"] > 50
    # Every byte of NVFP4 has a meaning.
    assert counts["bad: refused"] > 5 or type_name == "NVFP4"
