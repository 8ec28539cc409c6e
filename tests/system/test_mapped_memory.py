from __future__ import annotations

import mmap

import pytest

from edge_rt.system.process_memory import advise


class Deaf:
    """A mapping as Windows has it."""


class Refusing:
    def madvise(self, value, begin):
        raise OSError(22, "Invalid argument")


@pytest.mark.parametrize(("memory", "advice"), [(Deaf(), "MADV_RANDOM"), (Refusing(), "MADV_RANDOM")])
def test_a_system_that_takes_no_advice(memory, advice):
    assert not advise(memory, advice)


def test_advice_that_no_system_knows():
    with mmap.mmap(-1, 4096) as memory:
        assert not advise(memory, "MADV_WHATEVER")


@pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="takes no advice")
def test_advice_is_taken():
    with mmap.mmap(-1, 4096) as memory:
        assert advise(memory, "MADV_RANDOM")
