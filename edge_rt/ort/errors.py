"""Turns exceptions of ONNX Runtime into edge-rt's errors: the only place where its messages are parsed."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Final

from edge_rt.errors import (
    Cancelled,
    DeviceFailed,
    DeviceHung,
    DeviceLost,
    DeviceMemoryExhausted,
    EdgeRTError,
    InferenceError,
    InvalidPackage,
    MemoryBudgetExceeded,
    RuntimeUnavailable,
    StorageError,
    UnsupportedModel,
    VersionMismatch,
)


def _contains(*words: str) -> Callable[[str], bool]:
    return lambda text: any(word in text for word in words)


_LOAD_AGAIN: Final = "Load the model again; if that fails too, start edge-rt again and check the GPU's driver."

# ONNX Runtime's message -> edge-rt's error, first match wins: (matches, error, what, action).
_TRANSLATIONS: Final[tuple[tuple[Callable[[str], bool], type[EdgeRTError], str, str], ...]] = (
    (
        _contains("CUDA_ERROR_OUT_OF_MEMORY", "CUDA failure 2:", "device memory"),
        DeviceMemoryExhausted,
        "The memory of the GPU is exhausted.",
        "Use a smaller context, or close another program that uses the GPU.",
    ),
    (
        _contains("Failed to allocate", "bad_alloc", "std::bad_alloc", "Available memory of"),
        MemoryBudgetExceeded,
        "A pass needs more memory than is available for it.",
        "Compute fewer tokens at once, use a smaller context, or give a larger budget.",
    ),
    (
        # Of a pass that was stopped, and allowed again before its error came here.
        _contains("the pass was stopped while experts were read"),
        Cancelled,
        "The run was stopped.",
        "Ask again.",
    ),
    (
        _contains("the file of weights ends before an expert"),
        StorageError,
        "weights.bin has become shorter while the model runs.",
        "Export or pull the model again, and load it anew.",
    ),
    (
        _contains("the file of weights is shorter than it was"),
        StorageError,
        "weights.bin is shorter than it was.",
        "Export or pull the model again.",
    ),
    # Of edge-rt's own provider: csrc/gpu/provider_api.h.
    (_contains("edge_rt gpu: the device is lost"), DeviceLost, "The GPU failed: it is lost.", _LOAD_AGAIN),
    (
        _contains("edge_rt gpu: the device does not answer"),
        DeviceHung,
        "The GPU failed: it does not answer.",
        _LOAD_AGAIN,
    ),
    # ONNX Runtime's CUDA provider names no error of the driver, but the GPU.
    (
        _contains("edge_rt gpu: the device failed", "CUDA_ERROR_", " ; GPU="),
        DeviceFailed,
        "The GPU failed.",
        _LOAD_AGAIN,
    ),
    (
        _contains("EP_FAIL", "EPFail"),
        RuntimeUnavailable,
        "The device cannot be used.",
        "Check its driver, or use the device cpu.",
    ),
    (
        lambda text: "edge_rt:" in text and "is not a registered function/op" in text,
        VersionMismatch,
        "The native library lacks an operator of the package.",
        "Install edge-rt again, or export the model again.",
    ),
    (
        _contains("is not a registered function/op", "No Op registered", "Could not find an implementation"),
        UnsupportedModel,
        "This ONNX Runtime lacks an operator of the package.",
        "Upgrade ONNX Runtime, or export the model again.",
    ),
    (
        _contains(
            "Protobuf parsing failed", "InvalidProtobuf", "INVALID_GRAPH", "InvalidGraph", "NO_SUCHFILE", "NoSuchFile"
        ),
        InvalidPackage,
        "ONNX Runtime cannot read the package's graph.",
        "Export or pull the model again.",
    ),
)


_PLACE: Final = re.compile(r"\S+\.(?:cc|cpp|cu|h):\d+ ")
"""A place in ONNX Runtime's source."""


def _cause(message: str) -> str:
    """Return what a message says behind its last place in the source: errors hold one another, the cause is last."""
    flat = " ".join(message.split())
    return _PLACE.split(flat)[-1] or flat


_SYSTEM_ERROR: Final = re.compile(r"SystemError : ([0-9]+)")
"""What is said where a file with weights cannot be opened or mapped: the number of the system's error."""


def of_system(number: int) -> EdgeRTError:
    """Return the error for a file with weights that the system does not open or map, given the number it says why."""
    reason = f"{os.strerror(number)}."
    if number == errno.ENOMEM:
        return MemoryBudgetExceeded("The weights cannot be mapped.", reason, "Use a smaller model, or free memory.")
    return StorageError("weights.bin cannot be read.", reason, "Check the permissions of the package's files.")


def translate(
    error: BaseException, *, loading: bool, device: str | None = None, is_on_device: bool = False
) -> EdgeRTError:
    """Turn an exception of ONNX Runtime into an error of edge-rt.

    Args:
        device: the device that it was opened on; None: the CPU.
        is_on_device: whether it ran on a device, whose memory is what a pass lacks then.
    """
    text = f"{type(error).__name__}: {error}"
    if (refused := _SYSTEM_ERROR.search(text)) is not None:
        return of_system(int(refused[1]))
    numbers = f"{type(error).__name__}: {_cause(str(error))}"[:300].rstrip(".") + "."
    for matches, kind, what, action in _TRANSLATIONS:
        if matches(text):
            if is_on_device and kind is MemoryBudgetExceeded:
                kind = DeviceMemoryExhausted
            return kind(what, numbers, action)
    if loading and device is not None:
        what = f"The execution provider for {device} refused the model."
        return UnsupportedModel(what, numbers, "Use the device cpu, or another version of the provider.")
    if loading:
        return InvalidPackage("ONNX Runtime refused the package.", numbers, "Export or pull the model again.")
    return InferenceError(
        "ONNX Runtime failed while running the model.", numbers, "Try again; report it if it repeats."
    )
