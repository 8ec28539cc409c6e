"""Compiles SPIR-V kernels for AMD GPUs that are not there: Mesa's driver RADV has a null device for that.

    python -m tests.gpu.radv FAMILY < WORK > ANSWER

is one process for one family (``navi21``), as the driver reads it from ``RADV_FORCE_FAMILY`` when it is loaded: see
``compile_for``. Needs Vulkan's loader and Mesa's drivers (Debian: ``libvulkan1 mesa-vulkan-drivers``).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER = Path("/usr/share/vulkan/icd.d/radeon_icd.x86_64.json")
FAMILIES = {
    "polaris10": "Radeon RX 480 (2016)",
    "vega10": "Radeon RX Vega (2017)",
    "navi10": "Radeon RX 5700 (2019)",
    "navi21": "Radeon RX 6800 (2020)",
    "vangogh": "Steam Deck (2022)",
    "gfx1100": "Radeon RX 7900 (2022)",
    "gfx1103_r1": "Radeon 780M (2023)",
}
"""What RADV calls some generations of GPUs, and a device of each."""

_VULKAN_1_3 = (1 << 22) | (3 << 12)
_EXECUTABLE = b"VK_KHR_pipeline_executable_properties"
_COMPUTE_STAGE, _CAPTURE = 0x20, 0x40 | 0x80  # statistics, and the text of the code


@dataclass(frozen=True)
class Compiled:
    """What the driver says of a kernel.

    Attributes:
        statistics: its numbers, by its names: ``VGPRs``, ``Spilled VGPRs`` ...
        code: instructions, as text.
    """

    statistics: dict[str, float]
    code: list[str]


def _struct(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    """Return a struct with a type and a chain before its fields."""
    return type(name, (Structure,), {"_fields_": [("kind", c_uint32), ("chain", c_void_p), *fields]})


_Application = _struct(
    "_Application", *[(f"_{i}", c_size_t) for i in range(3)], ("engine", c_uint32), ("version", c_uint32)
)
_Instance = _struct(
    "_Instance", ("flags", c_uint32), ("application", c_void_p), *[(f"_{i}", c_size_t) for i in range(4)]
)
_Queue = _struct(
    "_Queue", ("flags", c_uint32), ("family", c_uint32), ("count", c_uint32), ("priorities", POINTER(c_float))
)
_Device = _struct(
    "_Device", ("flags", c_uint32), ("queues", c_uint32), ("queue_infos", c_void_p), ("layers", c_uint32),
    ("layer_names", c_void_p), ("extensions", c_uint32), ("extension_names", POINTER(c_char_p)), ("features", c_void_p),
)  # fmt: skip
_Features2 = _struct("_Features2", ("features", c_uint32 * 55))
_Features11 = _struct("_Features11", ("features", c_uint32 * 12))
_Features12 = _struct("_Features12", ("features", c_uint32 * 47))
_Features13 = _struct("_Features13", ("features", c_uint32 * 15))
_FeaturesExecutable = _struct("_FeaturesExecutable", ("features", c_uint32 * 1))
_Properties2 = _struct("_Properties2", ("number", c_uint32 * 5), ("name", c_char * 256), ("rest", c_char * 556))
_Dots = _struct("_Dots", ("is_fast", c_uint32 * 30))
_Module = _struct("_Module", ("flags", c_uint32), ("bytes", c_size_t), ("code", c_char_p))
_Layout = _struct(
    "_Layout", ("flags", c_uint32), ("sets", c_uint32), ("set_layouts", c_void_p), ("ranges", c_uint32),
    ("range", c_void_p),
)  # fmt: skip
_Stage = _struct(
    "_Stage",
    ("flags", c_uint32),
    ("stage", c_uint32),
    ("module", c_uint64),
    ("name", c_char_p),
    ("constants", c_void_p),
)
_Pipeline = _struct(
    "_Pipeline", ("flags", c_uint32), ("stage", _Stage), ("layout", c_uint64), ("base", c_uint64), ("index", c_uint32)
)
_Executable = _struct("_Executable", ("pipeline", c_uint64), ("index", c_uint32))
_Statistic = _struct(
    "_Statistic", ("name", c_char * 256), ("text", c_char * 256), ("format", c_uint32), ("value", c_uint64)
)
_Text = _struct(
    "_Text",
    ("name", c_char * 256),
    ("text", c_char * 256),
    ("is_text", c_uint32),
    ("bytes", c_size_t),
    ("data", c_void_p),
)


class _Constants(Structure):
    _fields_ = (("count", c_uint32), ("entries", c_void_p), ("bytes", c_size_t), ("data", c_void_p))


class _Constant(Structure):
    _fields_ = (("number", c_uint32), ("offset", c_uint32), ("bytes", c_size_t))


def _check(result: int, what: str) -> None:
    if result < 0:
        raise SystemExit(f"{what} failed: {result}")


class NullDevice:
    """A device of a family, that can compile and nothing else.

    Attributes:
        version: of Mesa.
        has_fast_dots: products of packed signed bytes are instructions there.
    """

    def __init__(self) -> None:
        self._vulkan = ctypes.CDLL("libvulkan.so.1")
        application = _Application(kind=0, version=_VULKAN_1_3)
        instance, physical, count = c_void_p(), c_void_p(), c_uint32(1)
        asked = _Instance(kind=1, application=ctypes.addressof(application))
        _check(self._vulkan.vkCreateInstance(byref(asked), None, byref(instance)), "vkCreateInstance")
        _check(self._vulkan.vkEnumeratePhysicalDevices(instance, byref(count), byref(physical)), "no device: that")
        dots = _Dots(kind=1000280001)
        properties = _Properties2(kind=1000059001, chain=ctypes.addressof(dots))
        self._vulkan.vkGetPhysicalDeviceProperties2(physical, byref(properties))
        version = properties.number[1]
        self.version = f"{version >> 22}.{version >> 12 & 1023}.{version & 4095}"
        self.has_fast_dots = bool(dots.is_fast[4])  # 4 x 8 bits, packed, signed
        self._device = c_void_p()
        self._open(physical)
        self._statistics = self._function("vkGetPipelineExecutableStatisticsKHR")
        self._texts = self._function("vkGetPipelineExecutableInternalRepresentationsKHR")
        layout = c_uint64()
        push = (c_uint32 * 3)(_COMPUTE_STAGE, 0, 8)  # an address
        asked_layout = _Layout(kind=30, ranges=1, range=ctypes.addressof(push))
        _check(self._vulkan.vkCreatePipelineLayout(self._device, byref(asked_layout), None, byref(layout)), "a layout")
        self._layout = layout

    def _open(self, physical: c_void_p) -> None:
        """Open the device with all that it can do, so that no kernel lacks anything."""
        parts = [_Features2(kind=1000059000), _Features11(kind=49), _Features12(kind=51), _Features13(kind=53)]
        parts.append(_FeaturesExecutable(kind=1000269000))
        for one, following in itertools.pairwise(parts):
            one.chain = ctypes.addressof(following)
        self._vulkan.vkGetPhysicalDeviceFeatures2(physical, byref(parts[0]))
        parts[0].features[0] = 0  # robustBufferAccess: as the backend has it
        queue = _Queue(kind=2, count=1, priorities=(c_float * 1)(1.0))
        names = (c_char_p * 1)(_EXECUTABLE)
        asked = _Device(kind=3, chain=ctypes.addressof(parts[0]), queues=1, queue_infos=ctypes.addressof(queue),
                        extensions=1, extension_names=names)  # fmt: skip
        _check(self._vulkan.vkCreateDevice(physical, byref(asked), None, byref(self._device)), "vkCreateDevice")

    def _function(self, name: str) -> Any:
        get = self._vulkan.vkGetDeviceProcAddr
        get.restype, get.argtypes = c_void_p, (c_void_p, c_char_p)
        return ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_void_p, c_void_p)(get(self._device, name.encode()))

    def compile(self, code: bytes, constants: dict[int, int]) -> Compiled:
        """Compile a kernel with the values of some specialisation constants."""
        module, pipeline = c_uint64(), c_uint64()
        asked = _Module(kind=16, bytes=len(code), code=code)
        _check(self._vulkan.vkCreateShaderModule(self._device, byref(asked), None, byref(module)), "a module")
        values = (c_uint32 * len(constants))(*constants.values())
        entries = (_Constant * len(constants))(*[(key, 4 * i, 4) for i, key in enumerate(constants)])
        given = _Constants(len(constants), ctypes.addressof(entries), 4 * len(constants), ctypes.addressof(values))
        stage = _Stage(kind=18, stage=_COMPUTE_STAGE, module=module, name=b"main", constants=ctypes.addressof(given))
        wanted = _Pipeline(kind=29, flags=_CAPTURE, stage=stage, layout=self._layout)
        made = self._vulkan.vkCreateComputePipelines(self._device, c_uint64(0), 1, byref(wanted), None, byref(pipeline))
        _check(made, "a pipeline")
        found = Compiled(self._numbers(pipeline), self._code(pipeline))
        self._vulkan.vkDestroyPipeline(self._device, pipeline, None)
        self._vulkan.vkDestroyShaderModule(self._device, module, None)
        return found

    def _numbers(self, pipeline: c_uint64) -> dict[str, float]:
        executable, count = _Executable(kind=1000269003, pipeline=pipeline), c_uint32()
        self._statistics(self._device, ctypes.addressof(executable), ctypes.addressof(count), None)
        found = (_Statistic * count.value)(*[_Statistic(kind=1000269004) for _ in range(count.value)])
        self._statistics(self._device, ctypes.addressof(executable), ctypes.addressof(count), ctypes.addressof(found))
        return {
            one.name.decode(): c_double.from_buffer_copy(c_uint64(one.value)).value if one.format == 3 else one.value
            for one in found
        }

    def _code(self, pipeline: c_uint64) -> list[str]:
        executable, count = _Executable(kind=1000269003, pipeline=pipeline), c_uint32()
        arguments = self._device, ctypes.addressof(executable), ctypes.addressof(count)
        self._texts(*arguments, None)
        found = (_Text * count.value)(*[_Text(kind=1000269005) for _ in range(count.value)])
        self._texts(*arguments, ctypes.addressof(found))
        room = [ctypes.create_string_buffer(max(1, one.bytes)) for one in found]
        for one, buffer in zip(found, room, strict=True):
            one.data = ctypes.addressof(buffer)
        self._texts(*arguments, ctypes.addressof(found))
        texts = {
            one.name.decode(): buffer.value.decode(errors="replace") for one, buffer in zip(found, room, strict=True)
        }
        return next((text.splitlines() for name, text in texts.items() if "Assembly" in name), [])


@dataclass(frozen=True)
class Work:
    """A kernel to compile.

    Attributes:
        image: its SPIR-V.
        dots: that with products of packed signed bytes, for devices with such instructions; "": there is none.
        constants: number -> value of its specialisation constants.
    """

    image: str
    dots: str
    constants: dict[int, int]


def compile_for(family: str, works: Iterable[Work]) -> tuple[str, list[Compiled]]:
    """Compile kernels for a family of GPUs, in a process of its own.

    Returns:
        Mesa's version, and what was made of each kernel, in order.
    """
    # A layer that chooses among devices, of Mesa's own, is in the way of one that is none.
    environment = os.environ | {
        "RADV_FORCE_FAMILY": family,
        "VK_DRIVER_FILES": str(DRIVER),
        "MESA_SHADER_CACHE_DISABLE": "true",
        "NODEVICE_SELECT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.radv", family],
        input=json.dumps([vars(work) for work in works]), capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"RADV's null device of {family} ended with {done.returncode}:\n{done.stderr}")
    version, compiled = json.loads(done.stdout)
    return version, [Compiled(**one) for one in compiled]


def main() -> None:
    device = NullDevice()
    # The driver prints to standard output, too.
    out = os.dup(1)
    os.dup2(2, 1)
    compiled = []
    for work in json.load(sys.stdin):
        image = Path(work["dots"] if device.has_fast_dots and work["dots"] else work["image"])
        constants = {int(key): value for key, value in work["constants"].items()}
        compiled.append(vars(device.compile(image.read_bytes(), constants)))
    with os.fdopen(out, "w") as file:
        json.dump([device.version, compiled], file)
    # Destroying a device that is none is not what is asked here.
    os._exit(0)


if __name__ == "__main__":
    main()
