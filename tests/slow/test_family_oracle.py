"""The stored cases of model families against transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.family_cases import CASES

pytestmark = pytest.mark.slow


def test_transformers_computes_the_stored_logits():
    command = [sys.executable, "-m", "tests.slow.family_oracle", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(f"{name}: " in done.stderr for name in CASES)
