"""What is known of a traced graph, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_rt.byte_size import human_bytes


def traced_rows(traced: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about a traced graph; ``traced`` are the fields of ``TracedInfo``."""
    rows = traced["exact_rows"]
    speculation = (
        f"chains: up to {rows} tokens computed together have the bits of single ones, checked at the export"
        if rows > 1
        else "off: tokens that are computed together do not have the bits of single ones"
    )
    return [
        ("exporter", str(traced["exporter"])),
        ("speculation", speculation),
        ("packed by ONNX Runtime", human_bytes(traced["packed_bytes"])),
        ("read in place", human_bytes(traced["mapped_bytes"])),
    ]
