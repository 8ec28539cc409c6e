"""Tables of rotations: right, and the same bits everywhere."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from edge_rt.export.families.rope import default_rope
from edge_rt.package.decoder import Rope
from edge_rt.package.rope_tables import PIECE_ROWS, cosines_and_sines, loaded_tables, rope_tables
from tests.helpers.arrays import tiny_decoder

BITS = "a199afefcb3164f61400b60414d7a67ea29c15d5d209aca78a83828397e42c64"
"""SHA-256 of tables that were computed on an Intel Xeon."""


@pytest.mark.parametrize("most", [1.0, 100.0, 1e4, 1e6])
def test_cosines_and_sines(most):
    angles = np.random.default_rng(3).uniform(0, most, 20_000)
    cosines, sines = cosines_and_sines(angles)
    np.testing.assert_allclose(cosines, np.cos(angles), rtol=0, atol=1e-15)
    np.testing.assert_allclose(sines, np.sin(angles), rtol=0, atol=1e-15)


def test_whole_numbers_that_come_near_multiples_of_half_a_pi():
    """355 / 113 is pi to seven digits."""
    angles = np.asarray([0.0, 22.0, 333.0, 355.0, 103_993.0, 312_689.0])
    cosines, sines = cosines_and_sines(angles)
    np.testing.assert_allclose(sines, np.sin(angles), rtol=0, atol=1e-15)
    np.testing.assert_allclose(cosines**2 + sines**2, 1, rtol=1e-14)
    assert (cosines[0], sines[0]) == (1.0, 0.0)


def test_the_tables_of_a_rotation():
    rope = default_rope(10_000.0, 16)
    cosines, sines = rope_tables(rope, PIECE_ROWS + 3, PIECE_ROWS + 3)
    rates = 10_000.0 ** (-np.arange(8) / 8)
    angles = np.arange(PIECE_ROWS + 3)[:, None] * rates
    assert cosines.dtype == sines.dtype == np.float32
    np.testing.assert_allclose(cosines, np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(sines, np.sin(angles), atol=1e-7)


def test_the_bits():
    rope = Rope("default", 500_000.0, tuple(float(Fraction(1, 3**pair)) for pair in range(32)), 1.25)
    digest = hashlib.sha256()
    for table in rope_tables(rope, 70_000, 70_000):
        digest.update(table.astype("<f4").tobytes())
    assert digest.hexdigest() == BITS


def test_long_contexts_have_their_own_frequencies():
    rope = Rope("longrope", 100.0, (1.0, 0.5), 2.0, (0.25, 0.125), 8)
    short, long = rope_tables(rope, 4, 8)[0], rope_tables(rope, 4, 9)[0]
    np.testing.assert_allclose(short[1], 2 * np.cos([1.0, 0.5]), rtol=1e-6)
    np.testing.assert_allclose(long[1], 2 * np.cos([0.25, 0.125]), rtol=1e-6)


class TestLoaded:
    def test_small_tables_are_in_the_file(self):
        assert loaded_tables(tiny_decoder(), 10) == {}

    def test_large_ones_are_not(self):
        decoder = tiny_decoder(sizes={"context_length": 1 << 22, "head_dim": 16}, ropes=(default_rope(100.0, 16),) * 2)
        assert decoder.loads_rope
        tables = loaded_tables(decoder, 10)
        assert list(tables) == ["rope.cos", "rope.sin", "rope1.cos", "rope1.sin"]
        assert all(table.shape == (10, 8) for table in tables.values())
