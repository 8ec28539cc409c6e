"""The only file that imports ONNX Runtime: sessions, bindings and the thread pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_rt.errors import (
    Cancelled,
    ConfigError,
    RuntimeUnavailable,
    VersionMismatch,
)
from edge_rt.ops import NativeLibrary, native_library
from edge_rt.package.graph_output import with_float_output
from edge_rt.package.manifest import OP_PROFILES
from edge_rt.session_errors import translate
from edge_rt.system.huge_pages import huge_pages_for_new_memory

MINIMUM_ONNXRUNTIME: Final = (1, 23)
MINIMUM_FOR_WINDOWS: Final = (1, 24)
"""In older versions GroupQueryAttention sees ``local_window_size`` + 1 tokens; measured: 1.23.2 against 1.24.4 to
1.31.1.
"""
MAX_THREADS: Final = 1024

# Official builds of ONNX Runtime report usage to their vendor unless this is set before they are imported; calling
# `disable_telemetry_events` afterwards still leaves a device id and a queue of events on the disk.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime as ort
except ImportError as _error:
    raise RuntimeUnavailable(
        "ONNX Runtime is not installed.",
        "edge-rt does not depend on it by itself, because its CPU and GPU wheels overwrite each other.",
        "Install one of them: pip install 'edge-rt[cpu]' or pip install 'edge-rt[gpu]'.",
    ) from _error
# For programs that imported ONNX Runtime before edge-rt.
ort.disable_telemetry_events()


def onnxruntime_version() -> str:
    """Return the version of the ONNX Runtime in use, for example ``"1.31.1"``."""
    return str(ort.__version__)


def check_onnxruntime_version(version: str | None = None) -> None:
    """Refuse a version below the oldest that is supported.

    Raises:
        VersionMismatch: ONNX Runtime is too old.
    """
    version = version or onnxruntime_version()
    if _major_minor(version) < MINIMUM_ONNXRUNTIME:
        floor = ".".join(map(str, MINIMUM_ONNXRUNTIME))
        raise VersionMismatch(
            "ONNX Runtime is too old.",
            f"Version {version} is installed, at least {floor} is needed.",
            "Upgrade it: pip install --upgrade onnxruntime.",
        )


def check_window_support(op_profile: str, window: int, version: str | None = None) -> None:
    """Refuse a sliding window that ONNX Runtime's operators compute wrongly.

    Args:
        op_profile: of the package; native ones have an operator of their own.
        window: tokens that a token sees, itself included; 0: all.
        version: of ONNX Runtime; None is the one in use.

    Raises:
        VersionMismatch: ONNX Runtime is too old for it.
    """
    version = version or onnxruntime_version()
    if op_profile == "portable" and window and _major_minor(version) < MINIMUM_FOR_WINDOWS:
        floor = ".".join(map(str, MINIMUM_FOR_WINDOWS))
        raise VersionMismatch(
            "ONNX Runtime is too old for a portable package with a sliding window: it sees one token too many.",
            f"The window is of {window} tokens; version {version} is installed, at least {floor} is needed.",
            "Upgrade ONNX Runtime, or export the model with --profile native.",
        )


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2])


def available_providers() -> list[str]:
    """Return the execution providers of the installed wheel, preferred first."""
    return list(ort.get_available_providers())


class _ThreadPool:
    """ONNX Runtime's process-wide pool, sized once: threads of separate pools would compete by spinning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size: int | None = None

    def ensure(self, threads: int) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ConfigError(
                "The number of threads is out of range.",
                f"Got {threads}, allowed are 1 to {MAX_THREADS}.",
                "Leave it out to use every CPU this process may use.",
            )
        with self._lock:
            if self._size is None:
                ort.set_global_thread_pool_sizes(threads, 1)
                self._size = threads
            elif self._size != threads:
                raise ConfigError(
                    "The thread pool of this process has another size already.",
                    f"It has {self._size} threads, {threads} were asked for.",
                    "Use the same number for every model of a process, or start another process.",
                )

    @property
    def size(self) -> int | None:
        return self._size


_POOL: Final = _ThreadPool()


def pool_size() -> int | None:
    """Return the size of the process-wide thread pool, or None before the first session."""
    return _POOL.size


class StopSwitch:
    """Stops a run from another thread or a signal handler; can be used again after ``reset``.

    edge-rt keeps a flag of its own because ONNX Runtime has no error code for a terminated run.
    """

    def __init__(self) -> None:
        # A plain flag: a signal handler must not wait for a lock that it interrupted.
        self._is_set = False
        self._options = ort.RunOptions()
        # ONNX Runtime's Python code looks this up at every run, and raises and catches an exception if it is missing,
        # which takes as long as a layer of a small model. The value means: capture no graph.
        self._options.add_run_config_entry("gpu_graph_id", "-1")
        self._options.log_severity_level = 4

    @property
    def is_set(self) -> bool:
        """True from ``stop`` until ``reset``."""
        return self._is_set

    def stop(self) -> None:
        """End the current run, and every later one, as soon as the running node returns."""
        self._is_set = True
        self._options.terminate = True

    def reset(self) -> None:
        """Allow runs again."""
        self._is_set = False
        self._options.terminate = False

    @property
    def run_options(self) -> Any:
        """The ``onnxruntime.RunOptions`` that carries the flag."""
        return self._options


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape (int or symbolic name per axis) and ONNX type string of a graph input or output."""

    name: str
    shape: tuple[int | str, ...]
    type: str


@dataclass(frozen=True)
class PassMemory:
    """Memory for the intermediate values of passes: tensors between operators, and work space of operators.

    It is one block from the beginning, so that it cannot become fragmented; pages that are not written take no memory.
    Weights that ONNX Runtime packs count towards the limit, if there is one.

    Attributes:
        bytes: size of the block.
        is_limit: whether a pass that needs more fails; otherwise the arena grows.
    """

    bytes: int
    is_limit: bool

    @property
    def arena(self) -> dict[str, int]:
        """ONNX Runtime's configuration of such an arena."""
        size = max(-(-self.bytes // _PAGE) * _PAGE, _PAGE)
        return {
            "max_mem": size if self.is_limit else 0,
            # The only strategy that uses the given size of the first block, and the one that grows.
            "arena_extend_strategy": 0,
            "initial_chunk_size_bytes": size,
            # A free block is always split, so that its rest can hold another tensor.
            "max_dead_bytes_per_chunk": 1,
        }


_PAGE: Final = 4096


def _register_arena(configuration: dict[str, int]) -> None:
    """Register an arena as the process's: sessions that are opened from now on use it if they ask for that one.

    It replaces the registered arena; a session that was opened before keeps its arena for itself.
    """
    kind = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(kind, ort.OrtArenaCfg(configuration))


@contextmanager
def _arena_of_its_own(options: Any, memory: PassMemory | None) -> Generator[None]:
    """Context manager: the session that is opened inside gets an arena that no other session shares."""
    if memory is None:
        yield
        return
    with _REGISTRATION:
        _register_arena(memory.arena)
        options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            yield
        finally:
            # Otherwise the process would keep the arena's memory after the session, and share it with unrelated
            # sessions.
            _register_arena({})


# ONNX Runtime's function takes only a path, so the instruction set is set in the library beforehand, under this lock,
# because another thread may open a session with another instruction set. The same holds for arenas.
_REGISTRATION: Final = threading.Lock()


def _register_native_ops(options: Any, library: NativeLibrary, isa: str | None) -> str:
    """Add edge-rt's operators to a session's options; return the instruction set that they use."""
    with _REGISTRATION:
        used = library.select(isa)
        try:
            options.register_custom_ops_library(str(library.path))
        except Exception as error:
            raise VersionMismatch(
                "ONNX Runtime refused the native operators.",
                f"{' '.join(str(error).split())[:300].rstrip('.')}.",
                "Install edge-rt again, or another version of ONNX Runtime.",
            ) from error
    return used


def _model(graph: Path | bytes, more_outputs: Sequence[TensorSpec], options: Any) -> str | bytes:
    """Return what ONNX Runtime opens: the path of a graph, or the graph with further outputs."""
    if isinstance(graph, bytes):
        assert not more_outputs, "a graph without a file has the outputs that it was written with"
        return graph
    if not more_outputs:
        return str(graph)
    model = graph.read_bytes()
    for output in more_outputs:
        model = with_float_output(model, output.name, output.shape)
    # A graph that comes from memory has no folder of its own to look for its weights in.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
    return model


class Session:
    """One graph opened on a device.

    Args:
        graph: path of the ``.onnx`` file, with its weights in the same folder; or its content, without weights.
        threads: size of the process-wide pool.
        providers: execution providers, preferred first.
        profile: the package's op profile; ``"native"`` registers edge-rt's operators.
        isa: instruction set of edge-rt's operators, one of ``NativeLibrary.isa_names``; None is the best one.
        library: library of edge-rt's operators; None is the installed one.
        memory: memory for intermediate values; None lets ONNX Runtime allocate what it needs, and keep it.
        more_outputs: values inside the graph that become outputs behind its own, float32.

    Raises:
        InvalidPackage, UnsupportedModel, MemoryBudgetExceeded: the graph cannot be opened, or has no such value.
        ConfigError: ``threads`` is out of range, the pool already has another size, or ``isa`` cannot be used.
        RuntimeUnavailable, VersionMismatch: edge-rt's operators are needed, and missing or unusable.
    """

    def __init__(
        self,
        graph: Path | bytes,
        *,
        threads: int,
        providers: Iterable[str] = ("CPUExecutionProvider",),
        profile: str = "portable",
        isa: str | None = None,
        library: NativeLibrary | None = None,
        memory: PassMemory | None = None,
        more_outputs: Sequence[TensorSpec] = (),
    ) -> None:
        check_onnxruntime_version()
        _POOL.ensure(threads)
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        # Errors reach the caller as exceptions; the log would write them to the terminal a second time.
        options.log_severity_level = 4
        # ONNX Runtime would keep a memory pattern for every shape, and prompts have many lengths.
        options.enable_mem_pattern = False
        self._isa: str | None = None
        if profile == "native":
            self._isa = _register_native_ops(options, library or native_library(), isa)
        elif profile not in OP_PROFILES:
            raise ConfigError(
                "The op profile is unknown.", f"Got {profile!r}.", f"Use one of {', '.join(OP_PROFILES)}."
            )
        elif isa is not None:
            raise ConfigError(
                "An instruction set can be chosen for native packages only.",
                f"Got {isa!r} for a graph of the op profile {profile!r}.",
                "Leave it out, or export the model with --profile native.",
            )
        # A native session reads the mapped file and packs nothing.
        pages = nullcontext if profile == "native" else huge_pages_for_new_memory
        try:
            model = _model(graph, more_outputs, options)
            with pages(), _arena_of_its_own(options, memory):
                self._session = ort.InferenceSession(model, options, providers=list(providers))
        except Exception as error:
            raise translate(error, loading=True) from error

    @property
    def inputs(self) -> list[TensorSpec]:
        """Inputs of the graph in its order."""
        return [TensorSpec(v.name, tuple(v.shape), v.type) for v in self._session.get_inputs()]

    @property
    def outputs(self) -> list[TensorSpec]:
        """Outputs of the graph in its order."""
        return [TensorSpec(v.name, tuple(v.shape), v.type) for v in self._session.get_outputs()]

    @property
    def providers(self) -> list[str]:
        """Execution providers in use."""
        return list(self._session.get_providers())

    @property
    def isa(self) -> str | None:
        """Instruction set of edge-rt's operators; None for a portable graph."""
        return self._isa

    def binding(self) -> Binding:
        """Return an empty binding for this session."""
        return Binding(self._session)


class Binding:
    """Arrays bound to the inputs and outputs of a session; ONNX Runtime reads and writes them in place.

    Bound arrays are kept alive here. An array may be bound to an input and an output at once: that is how
    the KV cache is updated without a copy.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._values: dict[str, Any] = {}

    def bind_input(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Bind a C-contiguous array to an input."""
        self._binding.bind_ortvalue_input(name, self._value(name, array))

    def bind_output(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Bind a writable C-contiguous array to an output."""
        assert array.flags.writeable, name
        self._binding.bind_ortvalue_output(name, self._value(name, array))

    def _value(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        # ONNX Runtime silently copies a non-contiguous array, and its output is lost.
        assert array.flags.c_contiguous, name
        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._values[name] = value
        return value

    def run(self, switch: StopSwitch) -> None:
        """Run the graph once on the bound arrays.

        Raises:
            Cancelled: ``switch`` was set before or during the run; outputs are undefined.
            InferenceError, MemoryBudgetExceeded: ONNX Runtime failed.
        """
        if switch.is_set:
            raise Cancelled("The run was stopped.")
        try:
            self._session.run_with_iobinding(self._binding, switch.run_options)
        except Exception as error:
            if switch.is_set:
                raise Cancelled("The run was stopped.") from error
            raise translate(error, loading=False) from error
