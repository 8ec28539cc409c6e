"""The native op profile in tests: whether this machine has it, and its instruction sets."""

from __future__ import annotations

import pytest

from edge_rt.ort.op_library import library_path, native_status


def require_native() -> tuple[str, ...]:
    """Return the instruction sets of the native operators, best first; skip the test where there are none."""
    status = native_status(library_path())
    if status.reason is not None:
        pytest.skip(f"needs the native operators: {status.reason}")
    return status.instruction_sets
