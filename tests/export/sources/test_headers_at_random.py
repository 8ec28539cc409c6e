"""Headers made up at random: a few of what ``tests/fuzz_headers.py`` reads a million of."""

from __future__ import annotations

import sys

import pytest

from tests import fuzz_headers


@pytest.mark.skipif(sys.platform == "win32", reason="needs a timer of processor time")
@pytest.mark.parametrize("kind", fuzz_headers.KINDS)
def test_read_as_written_or_refused(kind):
    counts = fuzz_headers.run(kind, 300, 2)
    assert counts["good: read"] > 50
    assert sum(count for what, count in counts.items() if "refused" in what) > 50
