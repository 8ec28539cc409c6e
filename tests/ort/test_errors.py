"""What ONNX Runtime raises becomes one of our errors."""

from __future__ import annotations

import errno

import pytest

from edge_rt.errors import (
    Cancelled,
    InferenceError,
    InvalidPackage,
    MemoryBudgetExceeded,
    StorageError,
    UnsupportedModel,
)
from edge_rt.ort.errors import translate


@pytest.mark.parametrize(
    ("message", "loading", "expected"),
    [
        ("Failed to allocate memory for requested buffer of size 1024", False, MemoryBudgetExceeded),
        ("std::bad_alloc", True, MemoryBudgetExceeded),
        ("com.microsoft:X(-1) is not a registered function/op", True, UnsupportedModel),
        ("Protobuf parsing failed", True, InvalidPackage),
        ("the pass was stopped while experts were read", False, Cancelled),
        ("anything else", True, InvalidPackage),
        ("anything else", False, InferenceError),
    ],
)
def test_messages_become_errors_of_ours(message, loading, expected):
    error = translate(RuntimeError(message), loading=loading)
    assert type(error) is expected
    assert message in error.numbers


@pytest.mark.parametrize(
    ("number", "expected", "reason"),
    [
        (errno.EACCES, StorageError, "Permission denied."),
        (errno.ENOMEM, MemoryBudgetExceeded, "Cannot allocate memory."),
    ],
)
def test_weights_that_the_system_refuses_are_no_broken_package(number, expected, reason):
    found = translate(RuntimeError(f"ModelRequiresCompilation: SystemError : {number}"), loading=True)
    assert type(found) is expected
    assert found.numbers == reason


def test_long_messages_are_cut_to_one_line():
    numbers = translate(RuntimeError("a\nb " * 1000), loading=False).numbers
    assert len(numbers) <= 301
    assert "\n" not in numbers


def test_of_an_error_within_an_error_the_cause_is_told():
    """The names of C++ functions between them are longer than what is shown."""
    outer = f"[ONNXRuntimeError] : 11 : EP_FAIL : /src/a/factory.cc:393 {'virtual ' * 60}"
    inner = "[ONNXRuntimeError] : 11 : EP_FAIL : /src/b/context.cc:136 Initialize()\nNo supported adapters\n\n"
    found = translate(RuntimeError(outer + inner), loading=True)
    assert found.numbers == "RuntimeError: Initialize() No supported adapters."
