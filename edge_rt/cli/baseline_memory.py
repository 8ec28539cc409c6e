"""Memory of an edge-rt command before it loads a model, estimated from the memory of a command that loads none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edge_rt.memory.figures import Device

LIBRARIES_BYTES: Final = 53 << 20
"""numpy, ONNX Runtime, tokenizers and the runtime, on top of the memory of a command that has imported itself alone.

``generate`` takes 47.2 MiB, and up to 5 more with other versions of the libraries; a chat at a terminal has 6 more for
its line editor. Kernels that map whole large folios map up to 18 MiB more of the libraries' code, if their files were
written in large pieces. A command that loads a model measures itself, so this is a lower bound for it; for ``edge-rt
plan`` it is all that is known.
"""

STEP: Final = 128 << 10
"""The memory of a process is rounded up to this step, so that the same command mostly gets the same plan."""
PLANNING: Final = 1 << 19
"""Margin of ``edge-rt plan`` over a command that loads: processes differ by 0.1 MiB, and a budget that ``plan`` reports
as enough must be enough. The margin is below 1 MiB, so every command refuses a budget 1 MiB below the smallest one."""


def own_bytes() -> int:
    """Return the current memory of this process in bytes; called when a command starts, before large imports."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def this_machine(own_bytes: int) -> Device:
    """Return this machine with the memory that a command has when it starts.

    The memory of the interpreter and the command line depends on their versions, so it is measured in this process and
    rounded up. A saved device description may have a higher value, which is then used; it never makes a plan smaller.
    """
    from edge_rt.memory.device import this_device

    return with_base(this_device(), own_bytes)


def holding(resident_bytes: int) -> Device:
    """Return this machine for a process that has everything imported, and holds so many bytes."""
    from edge_rt.memory.device import this_device
    from edge_rt.system.byte_size import round_up

    return replace(this_device(), base_bytes=round_up(resident_bytes, STEP))


def with_base(device: Device, own_bytes: int) -> Device:
    """Return the device with a command's memory as ``base_bytes``, or the measured value if that is more."""
    from edge_rt.system.byte_size import round_up

    expected = round_up(own_bytes, STEP) + LIBRARIES_BYTES
    return replace(device, base_bytes=max(expected, device.base_bytes or 0))
