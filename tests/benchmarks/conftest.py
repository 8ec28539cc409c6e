"""Scripts of benchmarks/ import each other as neighbours; so do the tests of their pure parts."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = str(Path(__file__).parents[2] / "benchmarks")
if SCRIPTS not in sys.path:
    sys.path.append(SCRIPTS)
