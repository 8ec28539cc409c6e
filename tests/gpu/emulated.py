"""GPUs as workers use them: each is a process of its own, where a provider's library stays once loaded."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edge_rt.device.cuda import CudaProvider
from edge_rt.device.driver import GpuLibrary
from edge_rt.device.provider import GpuProviders

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
OUT_OF_MEMORY, NOT_READY, LAUNCH_FAILED, DRIVER_MISMATCH = 2, 600, 719, 803
SOME = "some"


class Gpu:
    """The provider's device on a driver: that of a GPU, or an emulated one that is left as it is.

    Args:
        library: of the provider.
        ops: of the operators.
        kernels: name of a source -> what was compiled of it.

    Attributes:
        device: its name for edge-rt.
        provider, vendor: its names for ONNX Runtime.
        registered: that of this process, whose memory ``on_gpu`` takes.
    """

    device = "cuda"
    provider = "EdgeRtGpuExecutionProvider"
    vendor = 0x10DE
    registered: ClassVar[Gpu]

    def __init__(self, library, ops, kernels):
        self.path, self.ops = library, ops
        GpuLibrary(Path(library), "GPUs").set_kernels(0, kernels)
        self._register()

    def _register(self):
        ort.register_execution_provider_library("edge_rt_gpu", self.path)
        self.devices = [d for d in ort.get_ep_devices() if d.ep_name == self.provider]
        Gpu.registered = self

    def providers(self):
        """Return edge-rt's provider with this library."""
        return GpuProviders(CudaProvider(lambda: Path(self.path), lambda found: {}))

    @contextmanager
    def starts(self, kernels=None, graphs=None):
        """Check what a block starts, where that is counted.

        Args:
            kernels: how many kernels; ``SOME``: at least one; None: any number.
            graphs: how many recorded passes, likewise.
        """
        yield

    def compiled(self):
        """Return how many kernels the driver has compiled in passes, where that is counted."""
        return 0

    def session(self, nodes, inputs, outputs, **options):
        """Return a session over some nodes; ``options`` are those of ``open``."""
        graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": 21, "edge_rt": 1}, name="g")
        return self.open(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString(), **options)

    def open(self, model, *, graphs=False, cpu=False):
        """Return a session over a model, a file or its bytes.

        Args:
            model: the model.
            graphs: passes with a number are recorded, and replayed.
            cpu: the session runs on the CPU alone.
        """
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.register_custom_ops_library(self.ops)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not cpu:
            options.add_provider_for_devices(self.devices, {"graphs": "1"} if graphs else {})
        # Or ONNX Runtime's Python code runs a failed pass again, on the CPU, and says so on standard output only.
        return ort.InferenceSession(model, options, enable_fallback=0)


class Live(NamedTuple):
    """What programs hold of an emulated device: how many of each, and bytes of its memory."""

    allocations: int
    pinned: int
    streams: int
    modules: int
    graphs: int
    contexts: int
    bytes: int


class EmulatedGpu(Gpu):
    """The emulated driver and the provider's device on it: with faults, and with counters."""

    def __init__(self, library, ops, **settings):
        self.path, self.ops = library, ops
        self._library = ctypes.CDLL(library)
        self.configure(**settings)
        self._library.edge_rt_gpu_emulated_fault.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int)
        self._register()

    def configure(self, memory=1 << 26, seed=7, devices=1):
        """Begin with a device that works.

        Args:
            memory: its bytes.
            seed: of the order in which threads run; 0: in turns, which is faster and finds less.
            devices: how many there are, as long as the process runs.
        """
        configure = self._library.edge_rt_gpu_emulated_configure
        configure.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_uint64)
        configure(memory, devices, 87, seed)

    def fault(self, function, number, code):
        self._library.edge_rt_gpu_emulated_fault(function.encode(), number, code)

    def hang(self, number, longest_wait_ms=50):
        """Let the device hang at a wait for it, counted from 0; what it holds is never given back then."""
        self._library.edge_rt_gpu_emulated_longest_wait(ctypes.c_int64(longest_wait_ms))
        self.fault("cuStreamQuery", number, NOT_READY)

    def live(self):
        """What is held of the device at the moment, as a ``Live``."""
        counts = (ctypes.c_int64 * len(Live._fields))()
        self._library.edge_rt_gpu_emulated_live(counts)
        return Live(*counts)

    def held_bytes(self):
        """Return the bytes of the device's memory that are held."""
        return self.live().bytes

    def work(self):
        counts = (ctypes.c_int64 * 2)()
        self._library.edge_rt_gpu_emulated_work(counts)
        return tuple(counts)

    @contextmanager
    def starts(self, kernels=None, graphs=None):
        """Check what a block starts; see ``Gpu.starts``."""
        before = self.work()
        yield
        for wanted, then, now in zip((kernels, graphs), before, self.work(), strict=True):
            assert wanted is None or (now > then if wanted == SOME else now - then == wanted), (wanted, now - then)


def value(name, kind, rank):
    return ir.Value(name=name, type=ir.TensorType(kind), shape=None if rank is None else ir.Shape([None] * rank))


def on_gpu(array):
    return ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, Gpu.registered.vendor)


def same_bits(found, wanted, what):
    """Check that arrays have the same bits; those of what is no number (NaN) are the processor's choice."""
    for one, other in zip(found, wanted, strict=True):
        is_none = other != other
        assert np.array_equal(is_none, one != one), what
        assert np.where(is_none, 0, one).tobytes() == np.where(is_none, 0, other).tobytes(), what


def expect(body, text):
    try:
        body()
    except Exception as error:
        found = str(error)
    else:
        found = "no error"
    assert text in found, found


def sweep(gpu, function, code, text, body):
    """Let each call of a function fail once: a clean error, nothing left behind, and the next time it works."""
    body()
    gc.collect()
    before = gpu.live()
    failures = 0
    for number in range(200):
        gpu.fault(function, number, code)
        try:
            body()
        except Exception as error:
            found = str(error)
        else:
            break
        finally:
            gpu.fault("", -1, 0)
        assert any(part in found for part in ([text] if isinstance(text, str) else text)), found
        failures += 1
        gc.collect()
        assert gpu.live() == before, (number, gpu.live(), before)
    assert failures > 0
    assert number == failures
    body()


def main(cases, **settings):
    """Run the cases that the command line names: ``python -m tests.gpu.WORKER "CASE ..." LIBRARY OPS [KERNELS]``.

    With ``KERNELS``, a folder of compiled kernels (``*.cubin``, or ``*.spv`` for Vulkan), the library's driver is used
    as it is: a GPU's, or an emulated one in place of it. Without, it is emulated, and cases may let it fail.

    Args:
        cases: name -> function of the ``Gpu``.
        settings: of the emulated device, see ``EmulatedGpu.configure``.
    """
    names, library, ops, *folders = sys.argv[1:]
    if folders and list(Path(folders[0]).glob("*.spv")):
        from tests.gpu.vulkan import VulkanGpu

        gpu = VulkanGpu(library, ops, Path(folders[0]))
    elif folders:
        gpu = Gpu(library, ops, {path.stem: path.read_bytes() for path in Path(folders[0]).glob("*.cubin")})
    else:
        gpu = EmulatedGpu(library, ops, **settings)
    for name in names.split():
        cases[f"case_{name}"](gpu)
