"""What edge-rt requires of NVIDIA's driver."""

from __future__ import annotations

import re
from pathlib import Path

CUDA = Path(__file__).parents[2] / "csrc" / "gpu" / "cuda"


def test_every_required_function_is_called():
    """A driver that lacks one is refused, so none may be required for tests alone."""
    required = re.findall(r"^  F\((\w+),", (CUDA / "driver.h").read_text(), re.MULTILINE)
    assert "cuLaunchKernel" in required
    sources = (path.read_text() for path in CUDA.glob("*.cc"))
    called = set(re.findall(r"\bcu[A-Z]\w+", "\n".join(sources)))
    assert [name for name in required if name not in called] == []
