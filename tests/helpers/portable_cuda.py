"""A stand-in for ONNX Runtime's provider for NVIDIA GPUs: one of the wheel for CPUs, which computes no node."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from edge_rt.device.provider import GpuProviders
from tests.device.test_provider import FakeProvider

STAND_IN = "AzureExecutionProvider"


def with_stand_in(lines):
    """Return edge-rt's provider with a driver that says these lines; skip the test if the wheel lacks the stand-in."""
    if STAND_IN not in ort.get_available_providers():
        pytest.skip(f"this ONNX Runtime has no {STAND_IN}")
    return GpuProviders(FakeProvider(lines, portable=STAND_IN))
