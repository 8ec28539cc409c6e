"""Checkpoint -> package; imported when first used, so that reading a header needs no numpy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_rt.export.estimate import ExportEstimate
    from edge_rt.export.exporter import STAGES, ExportReport, export_model

__all__ = ["STAGES", "ExportEstimate", "ExportReport", "export_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'edge_rt.export' has no attribute {name!r}")
    module = "estimate" if name == "ExportEstimate" else "exporter"
    return getattr(importlib.import_module(f"edge_rt.export.{module}"), name)
