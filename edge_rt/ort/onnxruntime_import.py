"""The only file that imports ONNX Runtime; the modules that use it take it from here."""

from __future__ import annotations

import os

from edge_rt.errors import RuntimeUnavailable, is_out_of_memory, out_of_memory
from edge_rt.system.machine import install_command

__all__ = ["ort"]

# Official builds of ONNX Runtime report usage to their vendor unless this is set before they are imported; calling
# `disable_telemetry_events` afterwards still leaves a device id and a queue of events on the disk.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime as ort
except ImportError as _error:
    if is_out_of_memory(_error):
        raise out_of_memory(_error) from _error
    raise RuntimeUnavailable(
        "ONNX Runtime is not installed.",
        "edge-rt does not depend on it by itself, because its CPU and GPU wheels overwrite each other.",
        f"Install one of them: {install_command('cpu')}, or for NVIDIA GPUs {install_command('gpu')}.",
    ) from _error
# For programs that imported ONNX Runtime before edge-rt.
ort.disable_telemetry_events()
