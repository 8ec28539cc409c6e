"""edge-rt's own execution provider for GPUs: a library for each kind of driver, and GPUs made ready to be opened."""

from __future__ import annotations

import ctypes
import importlib.resources
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edge_rt.device.names import DeviceName
from edge_rt.errors import RuntimeUnavailable

if TYPE_CHECKING:
    # A process that opens no GPU does without it.
    from edge_rt.device.driver import DriverError, Gpu, GpuLibrary, SelfTest


class GpuProvider(ABC):
    """A library of the provider, and what hands over its kernels; derived for each kind of driver.

    Args:
        library: where the library is.
        driver: name of the driver's library; None: the provider's library has one, which is emulated.

    Attributes:
        kind: that of its devices' names.
        whose: such as ``"NVIDIA GPUs"``.
        context_bytes: of a GPU's memory, that the driver takes once a process has opened it.
        host_bytes: of a process's memory, that the driver takes once it was asked anything.
        chunk_bytes, page_bytes: see ``edge_rt.memory.figures.GpuFigures``.
        is_asked_always: whether ``auto`` asks the driver also where nothing was measured on its GPUs.
        device_files: patterns of the names that files of its GPUs have in /dev.
        file_group: which group owns them, for people.
    """

    kind: ClassVar[str]
    whose: ClassVar[str]
    context_bytes: ClassVar[int]
    host_bytes: ClassVar[int]
    chunk_bytes: ClassVar[int] = 0
    page_bytes: ClassVar[int] = 0
    is_asked_always: ClassVar[bool]
    device_files: ClassVar[tuple[str, ...]]
    file_group: ClassVar[str]

    def __init__(self, library: Callable[[], Path], driver: str | None = None) -> None:
        self._find, self._driver = library, driver
        # Kernels may take a minute or more to compile: who only asks which GPUs there are does not wait for them.
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._library: GpuLibrary | None = None
        self._ready: set[int] = set()
        self._keeping: set[int] = set()
        self._was_asked = False

    @abstractmethod
    def kernels(self, gpu: Gpu) -> Mapping[str, bytes]:
        """Return the kernels of a GPU, by name."""

    @abstractmethod
    def refused(self, gpu: Gpu) -> RuntimeUnavailable | None:
        """Return why kernels cannot run on a GPU; None: they can."""

    @abstractmethod
    def facts(self, gpu: Gpu) -> dict[str, Any]:
        """Return what measurements on a GPU depend on besides its name, as a JSON object."""

    @abstractmethod
    def driver_error(self, answer: DriverError | None) -> RuntimeUnavailable:
        """Return the error for what the driver has answered in place of its GPUs; None: it counts none."""

    def known_test(self, gpu: Gpu) -> SelfTest | None:
        """Return whether a GPU has the CPU's bits, as far as that is known without opening it."""
        return self.self_test(gpu)

    @abstractmethod
    def self_test(self, gpu: Gpu) -> SelfTest:
        """Return whether a GPU has the CPU's bits; it may be opened to find out."""

    def compiled_file(self, gpu: Gpu) -> Path | None:
        """Return a file for what the driver makes of a GPU's kernels, whose folder is there; None: there is none."""
        del gpu
        return None

    def are_made(self, gpu: Gpu) -> bool:
        """Return whether its kernels take no time, because they were made before."""
        del gpu
        return True

    def keeps_made(self, gpu: Gpu) -> bool:
        """Return whether what is made of its kernels is kept for later processes; where it has to be, loads fail."""
        del gpu
        return True

    def closed_files(self) -> tuple[Path, ...]:
        """Return the files of its GPUs that this process may not use."""
        from edge_rt.device.driver import closed_files

        return closed_files(self.device_files)

    def hidden(self) -> RuntimeUnavailable | None:
        """Return why the driver lists programs on the CPU alone where a GPU has files; None: it lists others, too."""
        from edge_rt.device.driver import not_permitted

        listed = self.listed()
        if not all(gpu.is_software for gpu in listed) or not (closed := self.closed_files()):
            return None
        return not_permitted(f"The driver lists {_named(listed)} alone", closed, self.file_group)

    @property
    def path(self) -> Path:
        """The path of the library."""
        return self._find()

    @property
    def library(self) -> GpuLibrary:
        """The opened library."""
        from edge_rt.device.driver import GpuLibrary

        path = self.path
        with self._lock:
            if self._library is None:
                self._library = GpuLibrary(path, self.whose)
            self._was_asked = True
            return self._library

    def has_driver(self) -> bool:
        """Return whether the driver can be asked, without opening the provider's library, which takes memory."""
        if self._driver is None:
            return True
        try:
            ctypes.CDLL(self._driver)
        except OSError:
            return False
        self._was_asked = True
        return True

    def listed(self) -> tuple[Gpu, ...]:
        """Return all GPUs that the driver tells of, also those that kernels cannot run on."""
        from edge_rt.device.driver import DriverError, read_gpus

        found = read_gpus(self.library.describe(), self.kind)
        if isinstance(found, DriverError) or not found:
            raise self.driver_error(found if isinstance(found, DriverError) else None)
        return found

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that kernels can run on, at least one."""
        listed = self.listed()
        usable = tuple(gpu for gpu in listed if self.refused(gpu) is None)
        if not usable:
            raise self.hidden() or self._refusal(listed[0])
        return usable

    def listed_gpu(self, name: DeviceName) -> Gpu:
        """Return a GPU, also one that kernels cannot run on."""
        assert name.kind == self.kind, name
        if name.index is None:
            return self._first()
        listed = self.listed()
        for gpu in listed:
            if gpu.number == name.index:
                return gpu
        raise RuntimeUnavailable(
            "There is no GPU of that number.",
            f"Got {name}; the driver for {self.whose} found {len(listed)}, counted from 0.",
            "Choose another: edge-rt doctor lists them.",
        )

    def gpu(self, name: DeviceName) -> Gpu:
        """Return a GPU that kernels can run on."""
        gpu = self.listed_gpu(name)
        if (why := self.refused(gpu)) is not None:
            raise why
        return gpu

    def _first(self) -> Gpu:
        """Return the first GPU that is no program on the CPU."""
        usable = self.gpus()
        for gpu in usable:
            if not gpu.is_software:
                return gpu
        for gpu in self.listed():
            if not gpu.is_software:
                raise self._refusal(gpu)
        # Without permission a driver leaves a GPU out, as one that is not installed.
        if (why := self.hidden()) is not None:
            raise why
        raise RuntimeUnavailable(
            f"The driver finds no {self.whose}, only programs on the CPU.",
            f"It lists {_named(usable)}.",
            f"Install the GPU's driver, use the device cpu, or for tests the device {usable[0].device_name}.",
        )

    def _refusal(self, gpu: Gpu) -> RuntimeUnavailable:
        why = self.refused(gpu)
        assert why is not None, gpu
        return why

    def free_bytes(self, number: int) -> int:
        """Return how much memory of a GPU nobody uses at present; this opens the GPU for a moment."""
        return self.library.free_bytes(number)

    @property
    def was_asked(self) -> bool:
        """Whether this process has asked the driver anything, which takes memory that stays."""
        return self._was_asked

    def is_ready(self, number: int) -> bool:
        """Return whether a GPU was made ready in this process, as every load does before it opens one for good."""
        with self._lock:
            return number in self._ready

    @property
    def has_opened(self) -> bool:
        """Whether any GPU was made ready in this process."""
        with self._lock:
            return bool(self._ready)

    def make_ready(
        self, gpu: Gpu, on_compile: Callable[[bool], None] | None = None, *, is_tested: bool = False
    ) -> None:
        """Hand over the kernels of a GPU, which may have to be compiled when it is used for the first time.

        Args:
            on_compile: called before they are compiled, which may take a minute, now or in the first passes, with
                whether the result is kept for later processes.
            is_tested: whether it is opened for its self-test alone, of whose kernels nothing is kept: what is kept says
                that passes were computed.
        """
        library = self.library
        with self._making:
            is_ready = self.is_ready(gpu.number)
            if not is_ready and (why := self.refused(gpu)) is not None:
                raise why
            # A self-test may have made it ready, for which nothing long is compiled.
            if on_compile is not None and not self.are_made(gpu):
                on_compile(self.keeps_made(gpu))
            if not is_ready:
                library.set_kernels(gpu.number, self.kernels(gpu))
                with self._lock:
                    self._ready.add(gpu.number)
            if gpu.number not in self._keeping and not is_tested:
                self._keeping.add(gpu.number)
                if (file := self.compiled_file(gpu)) is not None:
                    library.keep_compiled(gpu.number, file)


class GpuProviders:
    """Providers for several kinds of drivers, one for each."""

    def __init__(self, *providers: GpuProvider) -> None:
        self._by_kind = {provider.kind: provider for provider in providers}

    def __iter__(self) -> Iterator[GpuProvider]:
        return iter(self._by_kind.values())

    def of(self, name: DeviceName) -> GpuProvider:
        """Return the provider of a device."""
        if (found := self._by_kind.get(name.kind)) is None:
            raise RuntimeUnavailable(
                f"edge-rt has no provider for the device {name} here.",
                f"There are those for {', '.join(self._by_kind) or 'none'}.",
                "Use the device cpu.",
            )
        return found

    def is_ready(self, name: DeviceName) -> bool:
        """Return whether a GPU was made ready in this process; see ``GpuProvider.is_ready``."""
        return name.index is not None and self.of(name).is_ready(name.index)

    @property
    def was_asked(self) -> bool:
        """Whether this process has asked any driver anything, which takes memory that stays."""
        return any(provider.was_asked for provider in self)

    @property
    def host_bytes(self) -> int:
        """Memory of the process that drivers take which were asked."""
        return sum(provider.host_bytes for provider in self if provider.was_asked)

    @property
    def opened(self) -> GpuProviders:
        """Those with GPUs that were made ready in this process."""
        return GpuProviders(*(provider for provider in self if provider.has_opened))

    @property
    def context_bytes(self) -> int:
        """Memory of GPUs that drivers took when GPUs were opened, if each has one."""
        return sum(provider.context_bytes for provider in self if provider.has_opened)


def _named(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(f"{gpu.name} ({gpu.device_name})" for gpu in gpus)


def installed(name: str) -> Path:
    """Return a place beside the installed operators; nothing else may name the code that runs."""
    return Path(str(importlib.resources.files("edge_rt") / "native" / name))


def installed_library(name: str, whose: str) -> Path:
    """Return an installed library of the provider."""
    path = installed(name)
    if not path.is_file():
        raise RuntimeUnavailable(
            f"This installation of edge-rt has no provider for {whose}.",
            f"{name} is not beside the library of its operators.",
            "Use the device cpu, or with a portable package the device webgpu.",
        )
    return path
