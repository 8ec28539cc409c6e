"""Checkpoint -> package."""

from edge_rt.export.estimate import ExportEstimate
from edge_rt.export.exporter import STAGES, ExportReport, export_model

__all__ = ["STAGES", "ExportEstimate", "ExportReport", "export_model"]
