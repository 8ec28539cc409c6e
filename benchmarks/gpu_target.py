"""What the stages of ``on_gpu.py`` run on: one of this machine's GPUs, or a build's emulated driver in its place."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from alternating import bootstrap
from synthetic_families import write_model

from edge_rt.device.cuda import GPU_LIBRARY, CudaProvider, compute_of, kernel_cache
from edge_rt.device.driver import Gpu
from edge_rt.device.installed import INSTALLED
from edge_rt.device.kernels import compiled_kernels, nvrtc_for
from edge_rt.device.names import VULKAN, DeviceName
from edge_rt.device.provider import GpuProvider, GpuProviders
from edge_rt.device.vulkan import VULKAN_LIBRARY, VulkanProvider
from edge_rt.export import export_model
from edge_rt.package.reader import Package, open_package

ROOT = Path(__file__).parents[1]
SHAPES = {"8b": "llama-3.1-8b", "4b": "qwen3-4b", "1b": "llama-3.2-1b", "tiny": "tiny"}
"""Shape as a stage is given it -> as ``synthetic_families`` names it."""
EMULATION = "libedge_rt_gpu_emulation.so"


@dataclass(frozen=True)
class Target:
    """A driver, and where results go.

    Attributes:
        device: the GPU.
        out: folder of results.
        build: folder that CMake built with ``-DEDGE_RT_BUILD_TESTS=ON``; None: the installed edge-rt is used.
        is_emulated: whether the build's emulated driver stands in for the GPU.
    """

    device: DeviceName
    out: Path
    build: Path | None
    is_emulated: bool

    @cached_property
    def providers(self) -> GpuProviders:
        """The provider that models are loaded with."""
        if self.build is None:
            return INSTALLED
        if self.is_vulkan:
            return GpuProviders(VulkanProvider(lambda: self.library, lambda: self.kernel_folder, lambda: self.out))
        return GpuProviders(CudaProvider(lambda: self.library, self._compiled))

    @property
    def is_vulkan(self) -> bool:
        """Whether the driver is one of Vulkan's."""
        return self.device.kind == VULKAN

    @property
    def provider(self) -> GpuProvider:
        """That of the device."""
        return self.providers.of(self.device)

    @property
    def gpu(self) -> Gpu:
        """The GPU that is measured."""
        return self.provider.gpu(self.device)

    @property
    def library(self) -> Path:
        """The build's library of the provider."""
        assert self.build is not None
        if self.is_vulkan:
            return self.build / VULKAN_LIBRARY
        return self.build / "csrc" / "tests" / EMULATION if self.is_emulated else self.build / GPU_LIBRARY

    @property
    def golden(self) -> Path:
        """The build's program for golden cases."""
        assert self.build is not None
        name = "vulkan" if self.is_vulkan else "emulated" if self.is_emulated else "device"
        return self.build / "csrc" / "tests" / f"gpu_golden_{name}"

    @cached_property
    def kernel_folder(self) -> Path:
        """A folder of the GPU's kernels alone, for programs of the build."""
        folder = self.out / f"kernels-{self.device.kind}"
        folder.mkdir(exist_ok=True)
        if self.is_vulkan:
            for path in (ROOT / "csrc").rglob("*.spv"):
                shutil.copy(path, folder)
        else:
            for name, image in self._compiled(self.gpu).items():
                (folder / f"{name}.cubin").write_bytes(image)
        return folder

    def _compiled(self, gpu: Gpu) -> dict[str, bytes]:
        if self.is_emulated:  # it has kernels of its own, whatever it is given
            return {"emulated": b"emulated"}
        nvrtc = nvrtc_for(int(gpu.driver))
        return compiled_kernels(nvrtc, compute_of(gpu), sources=ROOT / "csrc", cache=kernel_cache())

    def facts(self) -> dict[str, Any]:
        """Return what figures depend on."""
        gpu = self.gpu
        named = {"gpu": gpu.name, "device": str(self.device), **self.provider.facts(gpu)}
        return {**named, "emulated": self.is_emulated}

    def package(self, shape: str, mix: str) -> Package:
        """Return a package of random weights, which is made when it is first asked for.

        Args:
            shape: one of ``SHAPES``.
            mix: one of ``synthetic_families.MIXES``.
        """
        folder, file = self.out / f"package-{shape}-{mix}", self.out / f"{shape}-{mix}.gguf"
        if not folder.is_dir():
            started = time.perf_counter()
            write_model(file, SHAPES[shape], mix)
            written = time.perf_counter() - started
            # Constants of 4-bit keys would take as long again, and no stage here writes such keys.
            export_model(file, folder, profile="native", calibration=None)
            file.unlink()
            seconds = time.perf_counter() - started
            print(f"made a package of the shape {shape} in {seconds:.0f} s, {written:.0f} s of them for its weights")
        return open_package(folder)


class Results:
    """Lines of JSON in a file, and a short table on standard output.

    Args:
        target: where they go, and what they were measured on.
        stage: name of the file.
    """

    def __init__(self, target: Target, stage: str) -> None:
        self._file = target.out / f"{stage}.jsonl"
        self._facts = {"stage": stage, **target.facts()}

    def add(self, text: str, **fields: Any) -> None:
        """Keep a line, and show its text."""
        self.keep(text=text, **fields)
        print(text, flush=True)

    def keep(self, **fields: Any) -> None:
        """Keep a line."""
        with self._file.open("a") as stream:
            stream.write(json.dumps({**self._facts, **fields}) + "\n")

    def ratio(self, text: str, above: Sequence[float], below: Sequence[float], **fields: Any) -> None:
        """Add the median of the ratios within rounds, with its 95 % interval.

        Args:
            text: what it is.
            above: numbers of every round.
            below: those that they are divided by.
            fields: more to keep.
        """
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        low, high = bootstrap(ratios)
        middle = float(np.median(ratios))
        self.add(f"{text}: {middle:.3f} ({low:.3f}-{high:.3f})", median=middle, low=low, high=high, **fields)

    def samples(self, samples: Mapping[str, Sequence[float]], **fields: Any) -> None:
        """Keep all samples, and show the median of each, with its 95 % interval.

        Args:
            samples: what was timed -> seconds.
            fields: more to keep.
        """
        for name, seconds in samples.items():
            low, high = bootstrap(seconds)
            text = f"{name}: {1e3 * np.median(seconds):.3f} ms ({1e3 * low:.3f}-{1e3 * high:.3f})"
            self.add(text, name=name, seconds=list(seconds), **fields)


def fail(why: Iterable[str]) -> None:
    """End the program with exit code 1 if anything is wrong."""
    if wrong := list(why):
        sys.exit("\n".join(wrong))
