"""Exports a checkpoint to a package; modules that need numpy or ONNX are imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edge_rt.export.entry import export_model, plan_export

if TYPE_CHECKING:
    from edge_rt.export.estimate import ExportEstimate as ExportEstimate
    from edge_rt.export.exporter import STAGES as STAGES, ExportReport as ExportReport
    from edge_rt.export.preparing import ExportForecast as ExportForecast

__all__ = ["STAGES", "ExportEstimate", "ExportForecast", "ExportReport", "export_model", "plan_export"]

_HOME = {
    "STAGES": "exporter",
    "ExportReport": "exporter",
    "ExportEstimate": "estimate",
    "ExportForecast": "preparing",
}


if not TYPE_CHECKING:  # to a type checker it would make every name an attribute

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'edge_rt.export' has no attribute {name!r}")
        return getattr(importlib.import_module(f"edge_rt.export.{_HOME[name]}"), name)
