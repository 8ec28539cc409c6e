"""Matrices that are converted through float: what all their layouts have in common."""

from __future__ import annotations

import pytest

from tests import fuzz_packed


@pytest.mark.parametrize("layout", fuzz_packed.CONVERTED)
def test_the_first_inputs_of_the_script_that_makes_many(layout):
    counts = fuzz_packed.run_converted(layout, 400, 2)
    refused = sum(count for kind, count in counts.items() if kind.endswith("refused"))
    assert counts["good"] > 100
    assert refused > 50
