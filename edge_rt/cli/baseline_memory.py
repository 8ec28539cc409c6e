"""What a command of edge-rt takes before it loads a model, told from a smaller one that loads none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edge_rt.memory.device import Device

LIBRARIES_BYTES: Final = 46 << 20
"""numpy, ONNX Runtime, tokenizers, the runtime and a chat's line editor, beside what every command has; measured: 44.4
to 45.6 MiB, of which the line editor takes 5."""


STEP: Final = 128 << 10
"""What a process holds is counted in such steps, so that one command has mostly one plan."""
PLANNING: Final = 1 << 19
"""What ``edge-rt plan`` counts more than a command that loads: processes differ by 0.1 MiB, and what is said to be
enough is to be enough. As it is less than 1 MiB, 1 MiB less than the smallest budget is refused by every command."""


def own_bytes() -> int:
    """Return what this process holds now; asked where a verb begins, before anything large is imported."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def this_machine(own_bytes: int) -> Device:
    """Return this machine as a command finds it that starts here.

    How much the interpreter and the command line take depends on their versions, so it is read from this process, in
    steps. A saved description may know of more, but belongs to the installation that made it: it makes no plan smaller.

    Args:
        own_bytes: of the process, as the function of that name returned it.
    """
    from edge_rt.memory.device import this_device

    return with_base(this_device(), own_bytes)


def with_base(device: Device, own_bytes: int) -> Device:
    """Return the device with what a command takes as ``base_bytes``, or what was measured if that is more.

    Args:
        device: of this machine.
        own_bytes: resident memory of a process of the command line that has imported nothing large.
    """
    from edge_rt.byte_size import round_up

    expected = round_up(own_bytes, STEP) + LIBRARIES_BYTES
    return replace(device, base_bytes=max(expected, device.base_bytes or 0))
