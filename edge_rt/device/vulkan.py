"""GPUs with Vulkan: what their drivers tell of them, errors, and kernels that were compiled when edge-rt was made."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_rt.device.compiled_files import mark_used
from edge_rt.device.names import VULKAN
from edge_rt.device.provider import GpuProvider, installed, installed_library
from edge_rt.errors import RuntimeUnavailable, StorageError, VersionMismatch
from edge_rt.system.json_files import JsonCache, user_cache
from edge_rt.version import VERSION

if TYPE_CHECKING:
    # A process that opens no GPU does without it.
    from edge_rt.device.driver import DriverError, Gpu, SelfTest

VULKAN_LIBRARY: Final = "libedge_rt_vulkan.so"
"""The provider's library, beside that of edge-rt's operators."""
SPIRV: Final = "vulkan"
"""Folder of the kernels, in the same place."""
LOADER: Final = "libvulkan.so.1"
"""Vulkan's loader, as the provider's library opens it."""

_CONTEXT_BYTES: Final = 64 << 20
"""What a driver takes of a GPU: code of kernels, lists of commands. An estimate, which was measured on no GPU."""
_HOST_BYTES: Final = 128 << 20
"""Memory of the process for the loader, the driver and its compiler, and 4 MiB that copies go through. An estimate."""

_INITIALISATION_FAILED: Final = -3
_INCOMPATIBLE_DRIVER: Final = -9


class VulkanProvider(GpuProvider):
    """The library for Vulkan's drivers.

    Args:
        spirv: returns the folder of the kernels, ``NAME.spv``.
        tests: returns the folder where answers of self-tests are kept.
        can_write: returns whether files can be made in a folder.
    """

    kind = VULKAN
    whose = "GPUs with Vulkan"
    context_bytes = _CONTEXT_BYTES
    host_bytes = _HOST_BYTES
    chunk_bytes = 64 << 10  # of csrc/gpu/vulkan/vulkan_commands.cc
    # Vulkan is on most machines, often with a program on the CPU alone, and its drivers take time and memory.
    is_asked_always = False
    device_files = ("dri/renderD*", "nvidiactl", "nvidia[0-9]*", "kgsl-3d0", "mali[0-9]*")
    file_group = "usually render or video"

    def __init__(
        self,
        library: Callable[[], Path],
        spirv: Callable[[], Path],
        tests: Callable[[], Path],
        driver: str | None = None,
        can_write: Callable[[Path], bool] = lambda folder: os.access(folder, os.W_OK),
    ) -> None:
        super().__init__(library, driver)
        self._spirv, self._tests, self._can_write = spirv, tests, can_write

    def kernels(self, gpu: Gpu) -> Mapping[str, bytes]:
        """Return all kernels, by the names of their files; the library takes those that suit the GPU."""
        del gpu
        folder = self._spirv()
        try:
            found = {path.name.removesuffix(".spv"): path.read_bytes() for path in sorted(folder.glob("*.spv"))}
        except OSError as error:
            raise StorageError(
                f"The kernels for {self.whose} cannot be read.", f"{error}.", "Install edge-rt again."
            ) from error
        if not found:
            raise RuntimeUnavailable(
                f"edge-rt was installed without its kernels for {self.whose}.",
                f"{folder} holds none.",
                "Install edge-rt again, or use the device cpu.",
            )
        return found

    def refused(self, gpu: Gpu) -> RuntimeUnavailable | None:
        """Return why kernels cannot run on a GPU: it lacks a feature."""
        if not gpu.refusal:
            return None
        return RuntimeUnavailable(
            f"The kernels cannot run on {gpu.name}.",
            f"{gpu.refusal[0].upper()}{gpu.refusal[1:].rstrip('.')}.",
            "Update its driver, choose another device (edge-rt doctor lists them), or use the device cpu.",
        )

    def known_test(self, gpu: Gpu) -> SelfTest | None:
        """Return what was found out about a GPU with this driver and these kernels; None: it was not tested yet."""
        from edge_rt.device.driver import SelfTest

        kept = JsonCache(self._tests()).load(self._test_key(gpu))
        if kept is None or type(kept.get("cpu_bits")) is not bool or not isinstance(kept.get("operations"), dict):
            return None
        return SelfTest(kept["cpu_bits"], {str(name): str(found) for name, found in kept["operations"].items()})

    def self_test(self, gpu: Gpu) -> SelfTest:
        """Return what a GPU's floating-point operations make; it is opened if it was not tested yet."""
        if (known := self.known_test(gpu)) is not None:
            return known
        self.make_ready(gpu, is_tested=True)
        found = self.library.self_test(gpu.number)
        document = {"cpu_bits": found.has_cpu_bits, "operations": dict(found.operations)}
        JsonCache(self._tests()).save(self._test_key(gpu), document)
        return found

    @property
    def compiled_folder(self) -> Path:
        """The folder for what drivers make of the kernels."""
        return self._tests().with_name("vulkan-compiled")

    def compiled_file(self, gpu: Gpu) -> Path | None:
        """Return the file for what a GPU's driver makes of the kernels, and mark it as used."""
        folder = self.compiled_folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        key = json.dumps(self._test_key(gpu), sort_keys=True).encode()
        file = folder / f"{hashlib.sha256(key).hexdigest()[:32]}.bin"
        mark_used(file)
        return file

    def are_made(self, gpu: Gpu) -> bool:
        """Return whether its driver has compiled them before; else it does in the first passes."""
        file = self.compiled_file(gpu)
        return file is not None and file.exists()

    def keeps_made(self, gpu: Gpu) -> bool:
        """Return whether the folder for what its driver makes of them can be written; its driver may keep more."""
        file = self.compiled_file(gpu)
        return file is not None and self._can_write(file.parent)

    def _test_key(self, gpu: Gpu) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name, image in self.kernels(gpu).items():
            digest.update(f"{name}\0{len(image)}\0".encode() + image)
        return {"edge_rt": VERSION, "name": gpu.name, "kernels": digest.hexdigest()[:32], **self.facts(gpu)}

    def facts(self, gpu: Gpu) -> dict[str, Any]:
        """Return what measurements on a GPU depend on besides its name, as a JSON object."""
        return {
            "type": gpu.more.get("type", ""),
            "memory_bytes": gpu.total_bytes,
            "shares_memory": gpu.is_unified,
            "driver": gpu.driver,
            "int8_dots": gpu.more.get("dots") == "1",
            "halves": gpu.more.get("halves") == "1",
        }

    def driver_error(self, answer: DriverError | None) -> RuntimeUnavailable:
        """Return the error for what the driver has answered in place of its GPUs."""
        return driver_error(answer, self.closed_files())


def driver_error(answer: DriverError | None, closed: tuple[Path, ...] = ()) -> RuntimeUnavailable:
    """Return the error for what Vulkan has answered.

    Args:
        answer: None: it counts no devices.
        closed: files of GPUs that this process may not use.
    """
    from edge_rt.device.driver import USE_THE_CPU, not_permitted

    code, sentence = (_INCOMPATIBLE_DRIVER, "it counts 0 devices") if answer is None else (answer.code, answer.sentence)
    numbers = f"{sentence.rstrip('.')}."
    if code == 0 and not sentence.startswith("dlopen"):
        return VersionMismatch(
            "The Vulkan loader is too old.", numbers, f"Update it and the GPU's driver, {USE_THE_CPU}."
        )
    if code == 0:
        return RuntimeUnavailable(
            "The Vulkan loader is not installed.",
            numbers,
            f"Install it (Debian and Ubuntu: libvulkan1) and the GPU's driver for Vulkan, {USE_THE_CPU}.",
        )
    if closed:
        return not_permitted(numbers[:-1], closed, VulkanProvider.file_group)
    if code in (_INITIALISATION_FAILED, _INCOMPATIBLE_DRIVER):
        return RuntimeUnavailable(
            "No driver for Vulkan finds a GPU on this machine.",
            numbers,
            f"Install the GPU's driver for Vulkan (for AMD and Intel on Debian: mesa-vulkan-drivers), {USE_THE_CPU}.",
        )
    return RuntimeUnavailable("The driver for Vulkan failed.", numbers, f"Check it with vulkaninfo, {USE_THE_CPU}.")


INSTALLED_VULKAN: Final = VulkanProvider(
    lambda: installed_library(VULKAN_LIBRARY, VulkanProvider.whose),
    lambda: installed(SPIRV),
    lambda: user_cache("gpu-self-tests"),
    driver=LOADER,
)
"""That of the installed package."""
