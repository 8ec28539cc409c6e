"""The custom operators of the native op profile, each described once, and the library that implements them.

The library is found inside the installed package and nowhere else: if a package, an option or the environment could
choose the path, it could choose the code that runs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.resources
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, cast

from edge_rt.errors import ConfigError, RuntimeUnavailable, VersionMismatch

DOMAIN: Final = "edge_rt"
"""Domain of the operators in a graph."""

ABI_VERSION: Final = 1
"""Version of the library's functions and of the operators below; changes together with ``csrc/register.cc``."""

MAX_HEAD_DIM: Final = 512
MAX_HEADS: Final = 1024
"""Largest head size that ``SpecAttention`` supports; it must be even."""


def library_file(platform: str = sys.platform) -> str:
    """Return the name of the library's file on a platform, named as ``sys.platform`` names it."""
    return {"win32": "edge_rt_ops.dll", "darwin": "libedge_rt_ops.dylib"}.get(platform, "libedge_rt_ops.so")


@dataclass(frozen=True)
class Port:
    """An input or output: its name, element type (``"any"``: several) and shape in the letters of the operator."""

    name: str
    dtype: str
    shape: str
    is_optional: bool = False


@dataclass(frozen=True)
class Op:
    """One operator: inputs and outputs in order; attributes with their kind, those with ``?`` have a default."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """The operator as the library describes it: ``Name(x:float,bias:float?)->(y:float)``."""
        inputs, outputs = (
            ",".join(f"{port.name}:{port.dtype}{'?' * port.is_optional}" for port in ports)
            for ports in (self.inputs, self.outputs)
        )
        return f"{self.name}({inputs})->({outputs})"


_WEIGHT: Final = Port("weight", "uint8", "[tiles, blocks, bytes]")

_ATTENTION_PORTS: Final = (
    Port("cache", "uint8", "[2, KV, C, row bytes]"),
    Port("past_length", "int32", "[1]"),
    Port("row_map", "int32", "[C], with a window [P] as well"),
    Port("parents", "int32", "[S]"),
    Port("kv_formats", "int32", "[layers]"),
    Port("cos", "float", "[P, R / 2]"),
    Port("sin", "float", "[P, R / 2]"),
    Port("q_norm", "float", "[D] or [H D]", is_optional=True),
    Port("k_norm", "float", "[D] or [KV D]", is_optional=True),
    Port("sinks", "float", "[H]", is_optional=True),
)
"""Inputs of attention in addition to queries, keys and values."""

_KEY_CONSTANT_PORTS: Final = (
    Port("key_centre", "float", "[KV, D]", is_optional=True),
    Port("key_balance", "float", "[KV, D]", is_optional=True),
    Port("key_feedback", "float", "[KV, D, D]", is_optional=True),
)
"""Constants of 4-bit keys; ``key_centre`` only without softcap and sinks."""

_QUERY_SCALE: Final = Port("query_scale", "float", "[P]", is_optional=True)

OPS: Final[tuple[Op, ...]] = (
    # y = residual + residual_scale * post_norm(softcap(output_scale * activation(norm(x) @ weight.T + bias))):
    # M rows, K inputs, N outputs; Nout is N, or half of it where tiles of gate and up rows alternate.
    Op(
        "QuantLinear",
        (
            Port("x", "float", "[M, K]"),
            _WEIGHT,
            Port("norm_weight", "float", "[K]", is_optional=True),
            Port("bias", "float", "[N]", is_optional=True),
            Port("residual", "float", "[M, Nout]", is_optional=True),
            Port("gate", "float", "[M, Nout]", is_optional=True),
            Port("post_norm", "float", "[Nout]", is_optional=True),
            Port("norm_bias", "float", "[K]", is_optional=True),
        ),
        (Port("y", "float", "[M, Nout]"),),
        {
            "format": "string",
            "out_features": "int",
            "in_features": "int",
            "part_rows": "string?",
            "epsilon": "float?",
            "activation": "string?",
            "norm": "string?",
            "output_scale": "float?",
            "softcap": "float?",
            "residual_scale": "float?",
        },
    ),
    # Rows of the same packed matrix that a tied head multiplies by, times `scale`.
    Op(
        "QuantEmbed",
        (Port("ids", "int64", "[S]"), _WEIGHT),
        (Port("y", "float", "[S, K]"),),
        {"format": "string", "out_features": "int", "in_features": "int", "scale": "float?"},
    ),
    # Rotates, appends keys and values to `cache` in place, and attends over the committed rows and a row's ancestors.
    Op(
        "SpecAttention",
        (
            Port("qkv", "float", "[S, (H + 2 KV) D]"),
            *_ATTENTION_PORTS,
            *_KEY_CONSTANT_PORTS,
            _QUERY_SCALE,
        ),
        (Port("y", "float", "[S, H D]"),),
        {
            "num_heads": "int",
            "num_kv_heads": "int",
            "head_dim": "int",
            "layer": "int",
            "scale": "float",
            "window": "int?",
            "softcap": "float?",
            "interleaved": "int?",
            "rotate": "int?",
            "norm_after_rotation": "int?",
            "epsilon": "float?",
        },
    ),
    # A whole layer: the operators above in sequence, in one parallel section.
    Op(
        "DecoderLayer",
        (
            Port("x", "float", "[S, K]"),
            *_ATTENTION_PORTS,
            Port("attention_norm", "float", "[K]", is_optional=True),
            Port("qkv", "uint8", "[tiles, blocks, bytes]"),
            Port("output", "uint8", "[tiles, blocks, bytes]"),
            Port("mlp_norm", "float", "[K]", is_optional=True),
            Port("gate_up", "uint8", "[tiles, blocks, bytes]"),
            Port("down", "uint8", "[tiles, blocks, bytes]"),
            *_KEY_CONSTANT_PORTS,
            Port("qkv_bias", "float", "[(H + 2 KV) D]", is_optional=True),
            Port("output_bias", "float", "[K]", is_optional=True),
            Port("gate_up_bias", "float", "[2 I], in the order of tiles; [I] without a gate", is_optional=True),
            Port("down_bias", "float", "[K]", is_optional=True),
            Port("attention_post_norm", "float", "[K]", is_optional=True),
            Port("mlp_post_norm", "float", "[K]", is_optional=True),
            _QUERY_SCALE,
            Port("attention_norm_bias", "float", "[K]", is_optional=True),
            Port("mlp_norm_bias", "float", "[K]", is_optional=True),
        ),
        (Port("y", "float", "[S, K]"),),
        {
            "num_heads": "int",
            "num_kv_heads": "int",
            "head_dim": "int",
            "layer": "int",
            "scale": "float",
            "hidden": "int",
            "intermediate": "int",
            "qkv_format": "string",
            "output_format": "string",
            "gate_up_format": "string",
            "down_format": "string",
            "window": "int?",
            "softcap": "float?",
            "interleaved": "int?",
            "rotate": "int?",
            "norm_after_rotation": "int?",
            "epsilon": "float?",
            "activation": "string?",
            "norm": "string?",
            "residual_scale": "float?",
        },
    ),
    # The k largest of each row, descending; of equal ones the smaller id first.
    Op(
        "RowTopK",
        (Port("logits", "float", "[R, V]"),),
        (Port("ids", "int32", "[R, k]"), Port("values", "float", "[R, k]"), Port("log_sum_exp", "float", "[R]")),
        {"k": "int"},
    ),
)
"""Shapes and meaning are described in ``docs/adding-an-op.md`` and in each operator's header in ``csrc/ops``."""


class NativeLibrary:
    """The library of operators, loaded.

    Args:
        path: the file.

    Raises:
        RuntimeUnavailable: the file cannot be loaded on this machine.
        VersionMismatch: it belongs to another version of edge-rt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = ctypes.CDLL(str(path))
            version, names, select = (
                getattr(self._handle, f"edge_rt_{name}") for name in ("abi_version", "isa_names", "select_isa")
            )
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable("The native library cannot be loaded.", f"{error}.", _ADVICE) from error
        if (found := version()) != ABI_VERSION:
            raise VersionMismatch(
                "The native library belongs to another version of edge-rt.",
                f"{path} has interface {found}, {ABI_VERSION} is needed.",
                "Install edge-rt again.",
            )
        names.restype = ctypes.c_char_p
        select.argtypes = (ctypes.c_char_p,)
        self._select = select
        self.isa_names: tuple[str, ...] = tuple(names().decode().split(","))
        """Instruction sets that the library has kernels for and this CPU executes, best first."""

    def select(self, isa: str | None) -> str:
        """Set the instruction set of sessions that register the library from now on; None is the best one.

        Returns:
            Its name.

        Raises:
            ConfigError: it is unknown, or cannot be used here.
        """
        if isa == "" or self._select(None if isa is None else isa.encode()) != 0:
            raise ConfigError(
                "The instruction set cannot be used here.",
                f"Got {isa!r}, available are {', '.join(self.isa_names)}.",
                "Leave it out to use the best one.",
            )
        return isa or self.isa_names[0]

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Return one of the library's other functions.

        Args:
            name: without the prefix ``edge_rt_``.
            result: ctypes type of what it returns; None if it returns nothing.
            arguments: ctypes types of its arguments.

        Raises:
            AttributeError: the library has no such function.
        """
        found = getattr(self._handle, f"edge_rt_{name}")
        found.restype, found.argtypes = result, arguments
        return cast("Callable[..., Any]", found)

    def signatures(self) -> tuple[str, ...]:
        """Return the operators that the library holds, written as ``Op.signature`` writes them."""
        describe = self._handle.edge_rt_op_signatures
        describe.restype = ctypes.c_char_p
        return tuple(describe().decode().splitlines())


# The command is at the end, so that it can be copied from the terminal.
_ADVICE: Final = (
    "Install a C++17 compiler and then edge-rt again, or export the model with ONNX Runtime's own operators: "
    "edge-rt export -m SOURCE --out DIR --profile portable"
)
_NOT_BUILT: Final = "edge-rt was installed without a C++ compiler and holds no native library."


def library_path(package: Traversable | None = None) -> Path | None:
    """Return where the library is, or None if there is none.

    Args:
        package: the one folder to look into; None is the installed package.
    """
    if package is not None:
        return _library_in(package)
    beside = _library_in(importlib.resources.files("edge_rt"))
    return beside if beside is not None else _library_in_site_packages()


def _library_in(package: Traversable) -> Path | None:
    found = package.joinpath("native").joinpath(library_file())
    # A package inside a zip file has no path that a library could be loaded from.
    return found if isinstance(found, Path) and found.is_file() else None


def _library_in_site_packages() -> Path | None:
    """Find the installed library if Python was started in a checkout and imports the sources from there."""
    try:
        installed = importlib.metadata.distribution("edge-rt").locate_file("edge_rt")
    except importlib.metadata.PackageNotFoundError:
        return None
    return _library_in(Path(str(installed)))


def open_library(path: Path | None) -> NativeLibrary:
    """Load a library; None means that none was built.

    Raises:
        RuntimeUnavailable, VersionMismatch: there is no library, or it cannot be used.
    """
    if path is None:
        raise RuntimeUnavailable("The native operators are missing.", _NOT_BUILT, _ADVICE)
    library = NativeLibrary(path)
    missing = sorted({op.signature for op in OPS} - set(library.signatures()))
    if missing:
        raise VersionMismatch(
            "The native library belongs to another version of edge-rt.",
            f"{path} lacks {len(missing)} of {len(OPS)} operators, for example {missing[0].partition('(')[0]}.",
            "Install edge-rt again.",
        )
    return library


@functools.cache
def native_library() -> NativeLibrary:
    """Return the installed library, loaded once.

    Raises:
        RuntimeUnavailable, VersionMismatch: there is no library, or it cannot be used.
    """
    return open_library(library_path())


@dataclass(frozen=True)
class NativeStatus:
    """Whether native packages can run here: the library's path, or the sentences of the error."""

    library: str | None
    reason: str | None
    instruction_sets: tuple[str, ...] = ()

    @property
    def best(self) -> str | None:
        """The instruction set that sessions use unless another one is asked for."""
        return self.instruction_sets[0] if self.instruction_sets else None


def native_status(path: Path | None) -> NativeStatus:
    """Return whether the library at ``path`` (None: there is none) can be used; see ``library_path``."""
    if path is None:
        return NativeStatus(None, _NOT_BUILT)
    try:
        return NativeStatus(str(path), None, open_library(path).isa_names)
    except (RuntimeUnavailable, VersionMismatch) as error:
        return NativeStatus(str(path), f"{error.what} {error.numbers}")
