"""Tests that an old ONNX Runtime cannot pass."""

from __future__ import annotations

import onnxruntime as ort
import pytest


def needs_onnxruntime(*least):
    """Return a mark that skips a test with a version of ONNX Runtime below ``least``: major and minor."""
    installed = tuple(map(int, ort.__version__.split(".")[:2]))
    return pytest.mark.skipif(installed < least, reason=f"needs ONNX Runtime {'.'.join(map(str, least))} or newer")
