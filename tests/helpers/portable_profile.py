"""The portable op profile in tests: whether ONNX Runtime computes sliding windows as it should."""

from __future__ import annotations

import pytest

from edge_rt.errors import VersionMismatch
from edge_rt.ort.session import check_window_support


def windows_refusal():
    """Return the error that portable packages with a sliding window meet here, or None."""
    try:
        check_window_support("portable", 1)
    except VersionMismatch as error:
        return error
    return None


def require_portable_windows():
    """Skip the test where ONNX Runtime is too old for portable packages with a sliding window."""
    error = windows_refusal()
    if error is not None:
        pytest.skip(f"needs sliding windows in the portable profile: {error.numbers}")
