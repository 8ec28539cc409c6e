"""Scripts of benchmarks/ import each other as neighbours; so do the tests of their pure parts."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
for folder in (BENCHMARKS, BENCHMARKS / "research"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
