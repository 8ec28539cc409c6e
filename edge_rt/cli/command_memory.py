"""What a command of edge-rt takes before it loads a model, told from a smaller one that loads none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edge_rt.memory.device import DeviceProfile

LIBRARIES_BYTES: Final = 45 << 20
"""numpy, ONNX Runtime, tokenizers, the runtime and a chat's line editor, beside what every command has; measured: 44.4
MiB, of which the line editor takes 5."""
_STEP: Final = 1 << 20


def this_machine() -> DeviceProfile:
    """Return this machine's profile for a command that is about to start here.

    To be called before anything large is imported. How much the interpreter and the command line take depends on their
    versions, so it is read from this process unless a saved profile knows it; in steps, so that a command that is
    typed twice has one plan.
    """
    import psutil

    own = int(psutil.Process().memory_info().rss)
    from edge_rt.memory.device import machine_profile

    profile = machine_profile()
    if profile.base_bytes is None:
        profile = replace(profile, base_bytes=-(-own // _STEP) * _STEP + LIBRARIES_BYTES)
    return profile
