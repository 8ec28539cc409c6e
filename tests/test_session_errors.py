"""What ONNX Runtime raises becomes one of our errors."""

from __future__ import annotations

import pytest

from edge_rt.errors import InferenceError, InvalidPackage, MemoryBudgetExceeded, UnsupportedModel
from edge_rt.session_errors import translate


@pytest.mark.parametrize(
    ("message", "loading", "expected"),
    [
        ("Failed to allocate memory for requested buffer of size 1024", False, MemoryBudgetExceeded),
        ("std::bad_alloc", True, MemoryBudgetExceeded),
        ("com.microsoft:X(-1) is not a registered function/op", True, UnsupportedModel),
        ("Protobuf parsing failed", True, InvalidPackage),
        ("anything else", True, InvalidPackage),
        ("anything else", False, InferenceError),
    ],
)
def test_messages_become_errors_of_ours(message, loading, expected):
    error = translate(RuntimeError(message), loading=loading)
    assert type(error) is expected
    assert message in error.numbers


def test_long_messages_are_cut_to_one_line():
    numbers = translate(RuntimeError("a\nb " * 1000), loading=False).numbers
    assert len(numbers) <= 301
    assert "\n" not in numbers
