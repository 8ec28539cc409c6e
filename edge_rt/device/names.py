"""Names of the devices that a model can run on, as users write them, and which one computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.errors import ConfigError

AUTO: Final = "auto"
CPU: Final = "cpu"
CUDA: Final = "cuda"
VULKAN: Final = "vulkan"
WEBGPU: Final = "webgpu"
OWN_GPUS: Final = (CUDA, VULKAN)
"""Kinds of devices that edge-rt's own execution provider computes on, with a library for each."""
GPUS: Final = (*OWN_GPUS, WEBGPU)
"""Kinds of devices that execution providers outside ONNX Runtime's wheel compute on."""
KINDS: Final = (AUTO, CPU, *GPUS)
NUMBER_HELP: Final = f"a number chooses one of several ({CUDA}:1, {VULKAN}:0)"
"""What is said beside the kinds where users are told what they may name."""
DEVICES_HELP: Final = f"Devices: {', '.join(KINDS)}; {NUMBER_HELP}. 'edge-rt doctor' shows which are here."
_NICKNAMES: Final = {"gpu": OWN_GPUS, "nvidia": (CUDA,)}
"""What users call devices that have other names here."""

RAISES: Final = "error"
ON_DEVICE_ERROR: Final = (RAISES, CPU)
"""What may be done where a GPU fails in an answer: end with an error, or go on with the CPU."""

GPU_LAYERS: Final = "gpu_layers"
"""Among the facts of a device: how many layers it computes where the CPU computes the others."""

CPU_BITS: Final = "cpu_bits"
"""Among the facts of a device: whether its results are the CPU's to the last bit; left out where that is always so."""

SELF_TEST: Final = "self_test"
"""Beside it: name of an operation -> ``"as it is"``, ``"mended"`` or ``"differs"``."""


@dataclass(frozen=True)
class DeviceName:
    """A device as it was asked for.

    Attributes:
        index: which of several devices of that kind, counted from 0; None: the first that is no program on the CPU,
            which Vulkan lists among its devices.
    """

    kind: str
    index: int | None = 0

    def __str__(self) -> str:
        is_plain = self.index is None or (self.index == 0 and self.kind != VULKAN)
        return self.kind if is_plain else f"{self.kind}:{self.index}"

    @property
    def is_gpu(self) -> bool:
        """Whether it names a GPU."""
        return self.kind in GPUS

    @property
    def is_own(self) -> bool:
        """Whether it names a GPU of edge-rt's own provider."""
        return self.kind in OWN_GPUS


ON_CPU: Final = DeviceName(CPU)


def is_local(text: str | None) -> bool:
    """Return whether what ``edge-rt plan --device`` was given means this machine; None is the flag left out."""
    return text is None or text.partition(":")[0] in KINDS


def parse_device(text: object, machines: Iterable[str] = ()) -> DeviceName:
    """Read the name of a device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"vulkan"``, ``"webgpu"``; ``"cuda:1"``.

    ``LoadOptions`` alone does so: inside, a device is a ``DeviceName``.

    Args:
        machines: names of machines to plan for, which may have been meant.
    """
    kind, colon, number = str(text).partition(":")
    if kind not in KINDS or (colon and (kind not in GPUS or not _is_number(number))):
        raise unknown_device(str(text), machines)
    if colon:
        return DeviceName(kind, int(number))
    return DeviceName(kind, None if kind == VULKAN else 0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 3


def unknown_device(text: str, machines: Iterable[str] = ()) -> ConfigError:
    """Return the error for a name that no device has; what is nearly right is suggested.

    Args:
        machines: names of machines to plan for; with a colon and a kind of device, of their GPUs.
    """
    known = (*KINDS, *machines)
    close = _close(text.lower(), known)
    return ConfigError(
        f"Unknown device {text!r:.60}.",
        f"Did you mean {' or '.join(close)}?" if close else f"None of the {len(known)} known names is similar.",
        f"{DEVICES_HELP} Machines to plan for: edge-rt plan --device list.",
    )


def _close(text: str, known: Sequence[str]) -> Sequence[str]:
    """Return the known names that a name is nearly one of; a device of which there may be several keeps its number."""
    from difflib import get_close_matches

    kind, _, number = text.partition(":")
    if kind not in KINDS and number and get_close_matches(number, (VULKAN,)):
        # The GPU of a machine is meant.
        whose = [name.removesuffix(f":{VULKAN}") for name in known if name.endswith(f":{VULKAN}")]
        if meant := [kind] if kind in whose else get_close_matches(kind, whose):
            return [f"{name}:{VULKAN}" for name in meant]
    known = [name for name in known if ":" not in name]
    close = (kind,) if kind in KINDS else _NICKNAMES.get(kind) or get_close_matches(kind, known)
    if not close and len(text) > 1:
        close = [name for name in known if name.startswith(text[:3])][:3]
    return [f"{name}:{number}" if name in GPUS and _is_number(number) else name for name in close]


_OP_PROFILES: Final = {CUDA: ("native", "portable"), VULKAN: ("native",), WEBGPU: ("portable",)}
"""Kind of device -> the op profiles whose operators its providers have."""


def require_op_profile(name: DeviceName, op_profile: str) -> None:
    """Refuse a package whose operators the provider of a device does not have."""
    if not name.is_gpu or op_profile in _OP_PROFILES[name.kind]:
        return
    wanted = _OP_PROFILES[name.kind]
    raise ConfigError(
        f"The package cannot run on the device {name}.",
        f"Its op profile is {op_profile}; packages of the op profile {' or '.join(wanted)} run there.",
        f"Export the model with the profile {wanted[0]}, or use the device {CPU}.",
    )


@dataclass(frozen=True)
class DeviceChoice:
    """The device that a plan is for, never ``auto``.

    Attributes:
        hint: a sentence for the user about a GPU that is not used; None if there is nothing to say.
        failures: GPUs that were to compute and failed: name of each, and its error.
        is_named: whether the device was asked for by its name; nothing takes its place if it fails.
    """

    device: DeviceName
    hint: str | None = None
    failures: tuple[tuple[str, str], ...] = ()
    is_named: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether a GPU that was to compute has failed."""
        return bool(self.failures)

    @property
    def note(self) -> str | None:
        """What is to be said about the choice; None if nothing is."""
        if not self.failures:
            return self.hint
        (name, error), *others = self.failures
        who = "The CPU" if self.device.kind == CPU else f"The GPU {self.device}"
        others_too = (f"{one} failed, too: {why}" for one, why in others)
        return " ".join((f"{who} computes, because {name} failed: {error}", *others_too))
