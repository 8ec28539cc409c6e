"""Loaded models for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model import Model


def load_package(path: Path, **options: Any) -> Model:
    """Open and load a package, with fields of ``LoadOptions``."""
    return Model(open_package(path), LoadOptions(**options))
