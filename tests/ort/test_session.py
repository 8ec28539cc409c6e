from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

import numpy as np
import onnx_ir as ir
import pytest

from edge_rt.errors import (
    Cancelled,
    ConfigError,
    InferenceError,
    InvalidPackage,
    MemoryBudgetExceeded,
    StorageError,
    UnsupportedModel,
    VersionMismatch,
)
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.op_library import NativeLibrary, library_path, native_library
from edge_rt.ort.session import (
    PassMemory,
    Session,
    TensorSpec,
    available_providers,
    check_onnxruntime_version,
    check_window_support,
    pool_size,
)
from edge_rt.system.machine import usable_cpus


def write_graph(path, op="Add", *, domain="", opset=21, steps=1):
    """Write a graph ``y = x + x`` (or of another operator) over float32 ``[n]``, repeated ``steps`` times."""
    x = ir.Value(name="x", shape=ir.Shape(["n"]), type=ir.TensorType(ir.DataType.FLOAT))
    nodes, value = [], x
    for step in range(steps):
        out = ir.Value(name="y" if step == steps - 1 else f"step{step}")
        nodes.append(ir.node(op, [value, value], domain=domain, outputs=[out]))
        value = out
    value.shape, value.type = ir.Shape(["n"]), ir.TensorType(ir.DataType.FLOAT)
    imports = {"": opset} | ({domain: 1} if domain else {})
    graph = ir.Graph([x], [value], nodes=nodes, opset_imports=imports, name="g")
    path.write_bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    return path


def opened(path):
    return Session(path, threads=pool_size() or usable_cpus())


@pytest.fixture
def session(tmp_path):
    return opened(write_graph(tmp_path / "g.onnx"))


class TestRun:
    def test_bound_arrays_are_read_and_written_in_place(self, session):
        x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
        binding = session.binding()
        binding.bind_input("x", x)
        binding.bind_output("y", y)
        binding.run(StopSwitch())
        assert y.tolist() == [0, 2, 4, 6]
        x[:] = 10
        binding.run(StopSwitch())
        assert y.tolist() == [20] * 4

    def test_the_graph_says_what_it_takes(self, session):
        assert session.inputs == [TensorSpec("x", ("n",), "tensor(float)")]
        assert session.outputs == [TensorSpec("y", ("n",), "tensor(float)")]
        assert session.providers == ["CPUExecutionProvider"]
        assert "CPUExecutionProvider" in available_providers()

    def test_arrays_that_would_be_copied_in_silence(self, session):
        binding = session.binding()
        with pytest.raises(AssertionError):
            binding.bind_input("x", np.zeros((4, 2), np.float32)[:, 0])
        fixed = np.zeros(4, np.float32)
        fixed.flags.writeable = False
        with pytest.raises(AssertionError):
            binding.bind_output("y", fixed)

    def test_no_memory_pattern_is_kept_per_shape(self, session):
        assert session._session.get_session_options().enable_mem_pattern is False

    def test_a_failing_run_is_an_inference_error(self, session):
        binding = session.binding()
        binding.bind_input("x", np.zeros(4, np.float32))
        binding.bind_output("y", np.zeros(5, np.float32))
        with pytest.raises(InferenceError):
            binding.run(StopSwitch())


class TestStopSwitch:
    @pytest.fixture
    def binding(self, tmp_path):
        session = opened(write_graph(tmp_path / "g.onnx", steps=200))
        binding = session.binding()
        binding.bind_input("x", np.zeros(1 << 20, np.float32))
        binding.bind_output("y", np.zeros(1 << 20, np.float32))
        return binding

    def test_set_before_the_run(self, binding):
        switch = StopSwitch()
        switch.stop()
        with pytest.raises(Cancelled):
            binding.run(switch)
        switch.reset()
        binding.run(switch)

    def test_it_reaches_the_options_of_every_recorded_pass(self):
        switch = StopSwitch()
        early = switch.run_options(3)
        assert switch.run_options(3) is early
        assert early.get_run_config_entry("gpu_graph_id") == "3"
        assert switch.run_options().get_run_config_entry("gpu_graph_id") == "-1"
        switch.stop()
        assert early.terminate
        # Also those of a pass that begins afterwards.
        assert switch.run_options(4).terminate
        switch.reset()
        assert not any(switch.run_options(number).terminate for number in (-1, 3, 4))
        switch.forget(3)
        assert switch.run_options(3) is not early

    def test_thrown_during_the_run(self, binding):
        switch = StopSwitch()
        timer = threading.Timer(0.01, switch.stop)
        timer.start()

        def run_on():
            for _ in range(1000):
                binding.run(switch)

        with pytest.raises(Cancelled):
            run_on()
        timer.join()
        switch.reset()
        assert not switch.is_set
        binding.run(switch)


class TestOpen:
    @pytest.mark.parametrize("data", [b"", b"no protobuf", b"\x08" + b"\xff" * 100])
    def test_no_graph(self, tmp_path, data):
        (tmp_path / "g.onnx").write_bytes(data)
        with pytest.raises(InvalidPackage):
            opened(tmp_path / "g.onnx")

    def test_no_file(self, tmp_path):
        with pytest.raises(InvalidPackage):
            opened(tmp_path / "none.onnx")

    def test_an_operator_it_does_not_have(self, tmp_path):
        with pytest.raises(UnsupportedModel, match="lacks an operator"):
            opened(write_graph(tmp_path / "g.onnx", "NoSuchOp", domain="com.microsoft"))

    def test_an_opset_of_the_future(self, tmp_path):
        with pytest.raises((InvalidPackage, UnsupportedModel)):
            opened(write_graph(tmp_path / "g.onnx", opset=99))


class TestMoreOutputs:
    def test_a_value_inside_the_graph_is_returned(self, tmp_path):
        path = write_graph(tmp_path / "g.onnx", steps=3)
        more = [TensorSpec("step1", ("n",), "tensor(float)"), TensorSpec("step0", ("n",), "tensor(float)")]
        session = Session(path, threads=pool_size() or usable_cpus(), more_outputs=more)
        assert session.outputs == [TensorSpec("y", ("n",), "tensor(float)"), *more]
        x, found = np.ones(4, np.float32), {name: np.zeros(4, np.float32) for name in ("y", "step1", "step0")}
        binding = session.binding()
        binding.bind_input("x", x)
        for name, array in found.items():
            binding.bind_output(name, array)
        binding.run(StopSwitch())
        assert {name: array.tolist() for name, array in found.items()} == {
            "y": [8] * 4,
            "step1": [4] * 4,
            "step0": [2] * 4,
        }

    def test_a_value_that_the_graph_has_not(self, tmp_path):
        path = write_graph(tmp_path / "g.onnx")
        with pytest.raises(InvalidPackage):
            Session(path, threads=pool_size() or usable_cpus(), more_outputs=[TensorSpec("z", ("n",), "tensor(float)")])


class TestPassMemory:
    """``y = 4 x``: the value between the two additions is the only one that is nobody's."""

    @staticmethod
    def bound(tmp_path, memory):
        session = Session(
            write_graph(tmp_path / "two.onnx", steps=2), threads=pool_size() or usable_cpus(), memory=memory
        )

        def compute(count):
            x, y = np.ones(count, np.float32), np.zeros(count, np.float32)
            binding = session.binding()
            binding.bind_input("x", x)
            binding.bind_output("y", y)
            binding.run(StopSwitch())
            return y

        return compute

    def test_a_run_that_needs_more_fails_and_a_smaller_one_works(self, tmp_path):
        compute = self.bound(tmp_path, PassMemory(1 << 20, is_limit=True))
        for _ in range(2):
            assert (compute(1 << 18) == 4).all()
            with pytest.raises(MemoryBudgetExceeded, match="needs more memory than is available for it"):
                compute((1 << 18) + 64)
        assert (compute(10) == 4).all()

    def test_what_runs_leave_behind_takes_no_room(self, tmp_path):
        compute = self.bound(tmp_path, PassMemory(1 << 20, is_limit=True))
        for count in range(1 << 10, 1 << 18, 5000):
            assert (compute(count) == 4).all()

    def test_without_a_limit_there_is_more(self, tmp_path):
        compute = self.bound(tmp_path, PassMemory(1 << 12, is_limit=False))
        assert (compute(1 << 20) == 4).all()

    def test_every_session_has_its_own(self, tmp_path):
        small = self.bound(tmp_path, PassMemory(1 << 16, is_limit=True))
        large = self.bound(tmp_path, PassMemory(1 << 22, is_limit=True))
        unlimited = self.bound(tmp_path, None)
        assert (large(1 << 20) == 4).all()
        assert (unlimited(1 << 21) == 4).all()
        with pytest.raises(MemoryBudgetExceeded):
            small(1 << 15)
        assert (small(1 << 14) == 4).all()


class TestNativeProfile:
    @pytest.mark.skipif(library_path() is None, reason="installed without a C++ compiler")
    def test_the_library_is_registered_with_an_instruction_set(self, tmp_path):
        graph, best = write_graph(tmp_path / "g.onnx"), native_library().isa_names[0]
        threads = pool_size() or usable_cpus()
        assert Session(graph, threads=threads, profile="native").isa == best
        assert Session(graph, threads=threads, profile="native", isa="scalar").isa == "scalar"
        # The choice was that session's alone.
        assert Session(graph, threads=threads, profile="native").isa == best
        with pytest.raises(ConfigError, match="available are"):
            Session(graph, threads=threads, profile="native", isa="mmx")

    @pytest.mark.skipif(library_path() is None, reason="installed without a C++ compiler")
    def test_a_library_that_onnx_runtime_refuses(self, tmp_path):
        class Moved(NativeLibrary):
            def __init__(self):
                super().__init__(library_path())
                self.path = tmp_path / "gone.so"

        with pytest.raises(VersionMismatch, match="refused the native operators"):
            Session(write_graph(tmp_path / "g.onnx"), threads=pool_size() or 1, profile="native", library=Moved())

    def test_a_portable_graph_has_no_instruction_set(self, session, tmp_path):
        assert session.isa is None
        with pytest.raises(ConfigError, match="native packages only"):
            Session(tmp_path / "g.onnx", threads=pool_size(), isa="scalar")


class TestThreadPool:
    @pytest.mark.parametrize("threads", [0, -1, 1025])
    def test_out_of_range(self, tmp_path, threads):
        with pytest.raises(ConfigError, match="out of range"):
            Session(write_graph(tmp_path / "g.onnx"), threads=threads)

    def test_one_size_per_process(self, session, tmp_path):
        assert pool_size() is not None
        with pytest.raises(ConfigError, match="another size"):
            Session(write_graph(tmp_path / "h.onnx"), threads=pool_size() + 1)


class TestVersion:
    @pytest.mark.parametrize("version", ["1.22.9", "1.9.0", "0.99.0", "1.22.0+cpu"])
    def test_too_old(self, version):
        with pytest.raises(VersionMismatch, match=r"at least 1\.23"):
            check_onnxruntime_version(version)

    @pytest.mark.parametrize("version", ["1.23.0", "1.31.1", "1.23.2+cpu", "2.0.0"])
    def test_new_enough(self, version):
        check_onnxruntime_version(version)

    @pytest.mark.parametrize("version", ["1.23.0", "1.23.2+cpu", "0.99.0"])
    def test_too_old_for_a_portable_window(self, version):
        message = f"The window is of 7 tokens; version {re.escape(version)} is installed, at least 1\\.24 is needed"
        with pytest.raises(VersionMismatch, match=message) as caught:
            check_window_support("portable", 7, version)
        assert "the profile native" in caught.value.action

    @pytest.mark.parametrize(
        ("op_profile", "window", "version"),
        [("portable", 7, "1.24.0"), ("portable", 7, "1.31.1+cpu"), ("portable", 7, "2.0.0"),
         ("portable", 0, "1.23.0"), ("native", 7, "1.23.0")],
    )  # fmt: skip
    def test_new_enough_for_a_window(self, op_profile, window, version):
        check_window_support(op_profile, window, version)

    def test_not_installed(self):
        program = (
            "import sys; sys.modules['onnxruntime'] = None\n"
            "from edge_rt.errors import RuntimeUnavailable\n"
            "try:\n import edge_rt.ort.session\n"
            "except RuntimeUnavailable as error: print(error.action)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "onnxruntime>=" in done.stdout
        assert "onnxruntime-gpu" in done.stdout


def test_nothing_is_reported_to_anybody(small_package, tmp_path):
    program = (
        "import sys, edge_rt\nwith edge_rt.load(sys.argv[1]) as model:\n    model.generate('Hello', max_tokens=2)\n"
    )
    home = {name: str(tmp_path / name) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"} | home
    subprocess.run([sys.executable, "-c", program, str(small_package)], env=environment, check=True)
    # Nothing of ONNX Runtime's; what edge-rt keeps for later loads is its own.
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert {file.parts[:2] for file in files} <= {("XDG_CACHE_HOME", "edge-rt")}


def test_a_name_in_a_damaged_graph_that_is_not_text(tmp_path):
    path = write_graph(tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes().replace(b"x", b"\xff"))
    session = opened(path)
    with pytest.raises(InvalidPackage, match="name in the package's graph is not text"):
        _ = session.inputs


def test_a_path_that_is_not_text(tmp_path):
    with pytest.raises(StorageError, match="whose path is not text"):
        opened(tmp_path / "\udcff.onnx")


FOLLOWS = """
import os
from edge_rt.ort import session
from edge_rt.system.machine import usable_cpus

class Library:
    def use_threads(self, threads):
        print(threads, end=" ")

cpus, pool = usable_cpus(), session._ThreadPool()
pool.ensure(cpus + {more})
pool.serve(Library())
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
pool.follow_cpus()
print("of", cpus)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads have no affinity here")
@pytest.mark.parametrize("more", [0, 3])
def test_threads_follow_the_cpus_that_may_be_used_unless_more_were_asked_for(more):
    code = FOLLOWS.format(more=more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, second, cpus = (int(word) for word in done.stdout.replace("of", "").split())
    assert (first, second) == ((cpus + more, cpus + more) if more else (cpus, 1))
