"""Sessions of ONNX Runtime, and the thread pool that they share."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import ConfigError, EdgeRTError, InvalidPackage, StorageError, VersionMismatch
from edge_rt.ort.binding import Binding, inputs_of_the_host
from edge_rt.ort.compute_device import ComputeDevice, PlacedNode, placement_of
from edge_rt.ort.device_weights import LaidConstants
from edge_rt.ort.errors import translate
from edge_rt.ort.onnxruntime_import import ort
from edge_rt.ort.op_library import NativeLibrary, native_library
from edge_rt.package.documents import is_text
from edge_rt.system.byte_size import counted
from edge_rt.system.machine import usable_cpus
from edge_rt.system.process_memory import huge_pages_for_new_memory

_GRAPH: Final = 7  # of ModelProto
_OUTPUT: Final = 12  # of GraphProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR_TYPE: Final = 1  # of TypeProto
_ELEMENT_TYPE, _SHAPE = 1, 2  # of TypeProto.Tensor
_DIMENSION: Final = 1  # of TensorShapeProto
_SIZE, _SYMBOL = 1, 2  # of its Dimension
_FLOAT: Final = 1  # TensorProto.FLOAT
_LOW_BITS, _CONTINUED = 0x7F, 0x80


def with_float_output(model: bytes, name: str, shape: Sequence[int | str]) -> bytes:
    """Return a model with a further output.

    Args:
        name: of a value inside its graph, float32.
        shape: of the value: a number or a symbol for every dimension.
    """
    dimensions = b"".join(_message(_DIMENSION, _dimension(size)) for size in shape)
    tensor = _number(_ELEMENT_TYPE, _FLOAT) + _message(_SHAPE, dimensions)
    output = _message(_NAME, name.encode()) + _message(_TYPE, _message(_TENSOR_TYPE, tensor))
    return model + _message(_GRAPH, _message(_OUTPUT, output))


def _dimension(size: int | str) -> bytes:
    return _message(_SYMBOL, size.encode()) if isinstance(size, str) else _number(_SIZE, size)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it: 7 bits per byte, low bits first."""
    result = bytearray()
    while value > _LOW_BITS:
        result.append(value & _LOW_BITS | _CONTINUED)
        value >>= 7
    result.append(value)
    return bytes(result)


MINIMUM_ONNXRUNTIME: Final = (1, 23)
MINIMUM_FOR_WINDOWS: Final = (1, 24)
"""In older versions GroupQueryAttention sees ``local_window_size`` + 1 tokens; measured: 1.23.2 against 1.24.4 to
1.31.1.
"""
MAX_THREADS: Final = 1024


def onnxruntime_version() -> str:
    """Return the version of the ONNX Runtime in use, for example ``"1.31.1"``."""
    return str(ort.__version__)


def check_onnxruntime_version(version: str | None = None) -> None:
    """Refuse a version below the oldest that is supported."""
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
    """
    version = version or onnxruntime_version()
    if op_profile == "portable" and window and _major_minor(version) < MINIMUM_FOR_WINDOWS:
        floor = ".".join(map(str, MINIMUM_FOR_WINDOWS))
        raise VersionMismatch(
            "ONNX Runtime is too old for a portable package with a sliding window: it sees one token too many.",
            f"The window is of {window} tokens; version {version} is installed, at least {floor} is needed.",
            "Upgrade ONNX Runtime, or export the model with the profile native.",
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
        self._library: NativeLibrary | None = None
        # More than there are CPUs were asked for.
        self._exceeds = False

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
                self._size, self._exceeds = threads, threads > usable_cpus()
            elif self._size != threads:
                raise ConfigError(
                    "The thread pool of this process has another size already.",
                    f"It has {counted(self._size, 'thread')}, {threads} were asked for.",
                    "Use the same number for every model of a process, or start another process.",
                )

    def serve(self, library: NativeLibrary) -> None:
        """Let a library compute with as many threads."""
        self._library = library
        self.follow_cpus()

    def follow_cpus(self) -> None:
        """Let the library compute with no more threads than there are usable CPUs now."""
        if self._library is not None and self._size is not None:
            self._library.use_threads(self._size if self._exceeds else min(self._size, usable_cpus()))

    @property
    def size(self) -> int | None:
        return self._size


_POOL: Final = _ThreadPool()


def pool_size() -> int | None:
    """Return the size of the process-wide thread pool, or None before the first session."""
    return _POOL.size


def follow_cpus() -> None:
    """Compute native graphs with no more threads than this process may use CPUs now: quotas and affinity change.

    It never makes more than the pool's, nor fewer where more than there were CPUs were asked for.
    """
    _POOL.follow_cpus()


def pool_threads() -> int:
    """Return the threads that a session computes with unless it is told: those of the pool, else every usable CPU."""
    return _POOL.size or usable_cpus()


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape (int or symbolic name per axis) and ONNX type string of a graph input or output."""

    name: str
    shape: tuple[int | str, ...]
    type: str


_PAGE: Final = 4096


@dataclass(frozen=True)
class PassMemory:
    """Memory for the intermediate values of passes: tensors between operators, and work space of operators.

    It is one block from the beginning, so that it cannot become fragmented; pages that are not written take no memory.
    Weights that ONNX Runtime packs count towards the limit, if there is one.

    Attributes:
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


def _register_arena(configuration: dict[str, int]) -> None:
    """Register an arena as the process's: sessions that are opened from now on use it if they ask for that one.

    It replaces the registered arena; a session that was opened before keeps its arena for itself.
    """
    kind = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(kind, ort.OrtArenaCfg(configuration))


class Arena:
    """An arena that is registered at present, see ``arena_of``."""


@contextmanager
def arena_of(memory: PassMemory | Arena | None) -> Generator[Arena | None]:
    """Context manager: sessions that are opened inside with the result share an arena, which no other session has.

    Args:
        memory: of the arena; an ``Arena`` of a block around this one is taken as it is; None: there is none.
    """
    if not isinstance(memory, PassMemory):
        yield memory
        return
    with _REGISTRATION:
        _register_arena(memory.arena)
        try:
            yield Arena()
        finally:
            # Otherwise the process would keep the arena's memory after the session, and share it with unrelated
            # sessions.
            _register_arena({})


# ONNX Runtime's function takes only a path, so the instruction set is set in the library beforehand, under this lock,
# because another thread may open a session with another instruction set. The same holds for arenas. Reentrant: several
# sessions are opened while their common arena is registered.
_REGISTRATION: Final = threading.RLock()


def _register_native_ops(options: Any, library: NativeLibrary, isa: str | None) -> str:
    """Add edge-rt's operators to a session's options; return the instruction set that they use."""
    with _REGISTRATION:
        used = library.select(isa)
        _POOL.serve(library)
        try:
            options.register_custom_ops_library(str(library.path))
        except Exception as error:
            raise VersionMismatch(
                "ONNX Runtime refused the native operators.",
                f"{' '.join(str(error).split())[:300].rstrip('.')}.",
                "Install edge-rt again, or another version of ONNX Runtime.",
            ) from error
    return used


@contextmanager
def _added(initializers: Mapping[str, Any] | LaidConstants | None, options: Any) -> Generator[None]:
    """Context manager: a session that is opened inside with the options has constants."""
    if isinstance(initializers, LaidConstants):
        with initializers.added_to(options):
            yield
        return
    for name, value in (initializers or {}).items():
        options.add_initializer(name, value)
    yield


def _specs(values: Iterable[Any]) -> list[TensorSpec]:
    try:
        return [TensorSpec(value.name, tuple(value.shape), value.type) for value in values]
    except UnicodeDecodeError as error:
        # ONNX Runtime opens graphs with names of any bytes.
        raise InvalidPackage(
            "A name in the package's graph is not text: the package is damaged.",
            f"{error.object!r:.80}, byte {error.start}.",
            "Export or pull the model again.",
        ) from error


def _model(graph: Path | bytes, more_outputs: Sequence[TensorSpec], options: Any) -> str | bytes:
    """Return what ONNX Runtime opens: the path of a graph, or the graph with further outputs."""
    if isinstance(graph, bytes):
        assert not more_outputs, "a graph without a file has the outputs that it was written with"
        return graph
    if not is_text(str(graph)):
        raise StorageError(
            "ONNX Runtime cannot open a file whose path is not text.",
            f"{str(graph)!r:.200} has bytes that are not UTF-8.",
            "Rename the folder, or copy the package to another one.",
        )
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
        threads: threads that compute; None: as ``pool_threads`` says.
        device: a GPU; None: the CPU.
        isa: instruction set of edge-rt's operators, one of ``NativeLibrary.isa_names``; None is the best one.
        library: library of edge-rt's operators; None is the installed one.
        memory: memory for intermediate values, or an arena that sessions share whose passes run one after another; None
            lets ONNX Runtime allocate what it needs, and keep it.
        more_outputs: values inside the graph that become outputs behind its own, float32.
        initializers: constants that are read where they are: name -> ``onnxruntime.OrtValue``, see ``MappedWeights``,
            or those of a device; ONNX Runtime maps or copies the others from their file.

    Attributes:
        placement: nodes of a graph on a device, as far as ONNX Runtime tells; empty for a graph on the CPU.
    """

    def __init__(
        self,
        graph: Path | bytes,
        *,
        threads: int | None = None,
        providers: Iterable[str] = ("CPUExecutionProvider",),
        device: ComputeDevice | None = None,
        profile: str = "portable",
        isa: str | None = None,
        library: NativeLibrary | None = None,
        memory: PassMemory | Arena | None = None,
        more_outputs: Sequence[TensorSpec] = (),
        initializers: Mapping[str, Any] | LaidConstants | None = None,
    ) -> None:
        check_onnxruntime_version()
        _POOL.ensure(pool_threads() if threads is None else threads)
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        # Errors reach the caller as exceptions; the log would write them to the terminal a second time.
        options.log_severity_level = 4
        # ONNX Runtime would keep a memory pattern for every shape, and prompts have many lengths.
        options.enable_mem_pattern = False
        self._isa: str | None = None
        if profile == "native":
            self._isa = _register_native_ops(options, library or native_library(), isa)
        elif isa is not None:
            raise ConfigError(
                "An instruction set can be chosen for native packages only.",
                f"Got {isa!r} for a graph of the op profile {profile!r}.",
                "Leave it out, or export the model with the profile native.",
            )
        # A native session reads the mapped file and packs nothing; one on a device packs nothing here.
        pages = nullcontext if profile == "native" or device is not None else huge_pages_for_new_memory
        try:
            model = _model(graph, more_outputs, options)
            with _added(initializers, options), pages(), arena_of(memory) as arena:
                if arena is not None:
                    options.add_session_config_entry("session.use_env_allocators", "1")
                if device is None:
                    # With fallback ONNX Runtime's Python code writes to standard output, and opens what failed again.
                    self._session = ort.InferenceSession(model, options, providers=list(providers), enable_fallback=0)
                else:
                    self._session = device.open(model, options)
        except EdgeRTError:
            raise
        except Exception as error:
            raise translate(error, loading=True, device=None if device is None else device.text) from error
        # Bindings hold ONNX Runtime's session, and that does not hold what it reads.
        self._session.initializers = initializers
        self._device = device
        self._numbers = itertools.count()
        self.placement: tuple[PlacedNode, ...] = () if device is None else placement_of(self._session)

    @property
    def inputs(self) -> list[TensorSpec]:
        """Inputs of the graph in its order; ``InvalidPackage`` if a name is not text."""
        return _specs(self._session.get_inputs())

    @property
    def outputs(self) -> list[TensorSpec]:
        """Outputs of the graph in its order; ``InvalidPackage`` if a name is not text."""
        return _specs(self._session.get_outputs())

    @property
    def providers(self) -> list[str]:
        """Execution providers in use."""
        return list(self._session.get_providers())

    @property
    def isa(self) -> str | None:
        """Instruction set of edge-rt's operators; None for a portable graph."""
        return self._isa

    @property
    def host_inputs(self) -> frozenset[str]:
        """Names of the inputs that are read in this process."""
        return inputs_of_the_host(self._session)

    def binding(self) -> Binding:
        """Return an empty binding for this session."""
        device = self._device
        if device is None:
            return Binding(self._session)
        number = next(self._numbers) if device.records_passes else None
        return Binding(self._session, is_on_device=True, tells_places=device.tells_places, number=number)
