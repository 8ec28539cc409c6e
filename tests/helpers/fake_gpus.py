"""A driver with GPUs that are made up, and costs of passes that were measured on them."""

from __future__ import annotations

from pathlib import Path

from edge_rt.device.cuda import CudaProvider
from edge_rt.device.driver import Gpu
from edge_rt.errors import RuntimeUnavailable
from edge_rt.runtime.speculation.cost_model import CURVE_ROWS, RowCosts
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION

GIB = 1 << 30
OLD = Gpu("cuda", 0, "an old GPU", "13000", 8 * GIB, False, {"compute": "61"})
LAPTOP = Gpu("cuda", 1, "a laptop's GPU", "13000", 8 * GIB, False, {"compute": "89"})
LARGE = Gpu("cuda", 2, "a large GPU", "13000", 80 * GIB, False, {"compute": "90"})
JETSON = Gpu("cuda", 0, "Orin", "13000", 7 * GIB, True, {"compute": "87"})
CPU_KEY = {"package_id": "x", "edge_rt": VERSION, "cpu": cpu_model(), "threads": 2, "isa": None, "kv_format": "f16"}


class FakeLibrary:
    """A driver; one that shares its memory, or is old, must not be opened.

    Args:
        gpus: the GPUs.
        free: bytes that are free on each; None: it cannot be opened.
        broken: numbers of others that cannot be opened.
    """

    def __init__(self, gpus, free, broken):
        self.gpus, self._free, self._broken = gpus, free, broken

    def describe(self):
        lines = ["driver\t13000"]
        for gpu in self.gpus:
            more = [f"{name}={value}" for name, value in gpu.more.items()]
            fields = ("gpu", gpu.number, gpu.total_bytes, int(gpu.is_unified), gpu.name, *more)
            lines.append("\t".join(map(str, fields)))
        return "\n".join(lines)

    def set_kernels(self, number, cubins):
        pass

    def free_bytes(self, number):
        (gpu,) = (gpu for gpu in self.gpus if gpu.number == number)
        assert gpu != OLD
        assert not gpu.is_unified
        if self._free is None or number in self._broken:
            raise RuntimeUnavailable("The GPU cannot be opened.", f"GPU {number}.", "Check it with nvidia-smi.")
        return self._free


class FakeProvider(CudaProvider):
    """edge-rt's provider with such a driver."""

    def __init__(self, *gpus, free=6 * GIB, broken=()):
        super().__init__(lambda: Path("library"), lambda gpu: {})
        self._library = FakeLibrary(gpus, free, broken)


def costs(ms, depths=(64, 320), *, rows=CURVE_ROWS, growth=0.1, steady=True):
    """Passes over a row that take ``ms``, more rows a little more."""
    line = tuple(ms * (1 + growth * (count - 1)) for count in rows)
    return RowCosts(tuple(rows), tuple(depths), (line,) * len(depths), steady)


def gpu_key(gpu, **changes):
    """The key of costs that were measured on a GPU, as ``ComputeDevice.facts`` writes it."""
    device = {"device": str(gpu.device_name), "provider": "EdgeRtGpuExecutionProvider", "version": "0.1"}
    device |= {"text": gpu.name, **FakeProvider(gpu).facts(gpu), **changes.pop("device", {})}
    return {**CPU_KEY, "device": device, **changes}
