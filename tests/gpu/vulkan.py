"""A Vulkan device as workers use it, with the layer for faults (``csrc/tests/vulkan_faults``) where that is loaded."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import tempfile
from pathlib import Path

from edge_rt.device.provider import GpuProviders
from edge_rt.device.vulkan import VulkanProvider
from tests.gpu.emulated import Gpu

LAYER = "libedge_rt_vulkan_faults.so"


class VulkanGpu(Gpu):
    """The first device of Vulkan's loader; ``VK_DRIVER_FILES`` says of which driver.

    Args:
        library: of the provider.
        ops: of the operators.
        spirv: folder of the kernels.
    """

    device = "vulkan:0"
    provider = "EdgeRtVulkanExecutionProvider"
    vendor = 0xED9E

    def __init__(self, library, ops, spirv):
        self._spirv, self._answers = spirv, tempfile.TemporaryDirectory()
        self._layer = None
        for folder in os.environ.get("VK_LAYER_PATH", "").split(":"):
            if (path := Path(folder, LAYER)).is_file():
                self._layer = ctypes.CDLL(str(path))
        kernels = {path.name.removesuffix(".spv"): path.read_bytes() for path in spirv.glob("*.spv")}
        super().__init__(library, ops, kernels)

    def providers(self, kind=VulkanProvider):
        places = (Path(self.path), self._spirv, Path(self._answers.name, "tests"))
        return GpuProviders(kind(*((lambda place=place: place) for place in places)))

    def set(self, settings):
        """Change the layer's settings, see ``faults.h``; "" takes all back."""
        assert self._layer.edge_rt_vulkan_faults_set(settings.encode()), settings

    def calls(self, function):
        count = self._layer.edge_rt_vulkan_faults_calls
        count.restype = ctypes.c_int64
        return count(function.encode())

    def live(self):
        """What is held of the device at the moment, as a text."""
        text = ctypes.create_string_buffer(512)
        self._layer.edge_rt_vulkan_faults_live(text, ctypes.c_size_t(len(text)))
        return text.value.decode()

    def held_bytes(self):
        """Return the bytes of memory that are held."""
        found = re.search(r"bytes (\d+)", self.live())
        return 0 if found is None else int(found[1])

    def compiled(self):
        return _kernels(self.live())

    def imported_bytes(self):
        """Return the bytes of this process's memory that are the device's as well."""
        imported = self._layer.edge_rt_vulkan_faults_imported
        imported.restype = ctypes.c_int64
        return imported()

    def complaints(self):
        count = self._layer.edge_rt_vulkan_faults_complaints
        count.restype = ctypes.c_int64
        return count()

    def fails(self, function, result, kind, body, numbers=range(500), *, is_retried=False):
        """Let calls of a function fail, one in each run: the error is of a kind, and all is given back.

        Args:
            function, result: see ``faults.h``.
            kind: class of the errors.
            body: what is run.
            numbers: which calls, ascending; no more are tried once one is not reached.
            is_retried: whether some are made again, and then are no error.

        Returns:
            How many have failed.
        """
        body()
        gc.collect()
        before = self.live()
        failed = 0
        for number in numbers:
            calls = self.calls(function)
            self.set(f"{function}={number}:{result}")
            try:
                body()
            except kind:
                failed += 1
            else:
                is_reached = self.calls(function) > calls + number
                assert is_retried or not is_reached, f"{function}, call {number}: no error"
                if not is_reached:
                    return failed
            finally:
                self.set("")
            gc.collect()
            # A device that was lost is given back as well, until somebody opens it anew: then it has the kernels that
            # it has needed until it was lost again.
            live = self.live()
            assert live in (before, "") or _without_kernels(live) == _without_kernels(before), (number, live, before)
            assert _kernels(live) <= _kernels(before), (number, live, before)
            assert self.complaints() == 0
        return failed


def _without_kernels(live):
    return re.sub(r", pipelines \d+", "", live)


def _kernels(live):
    found = re.search(r", pipelines (\d+)", live)
    return 0 if found is None else int(found[1])
