"""Kernels for the GPU at hand: compiled by NVIDIA's run-time compiler when a GPU is first used, and kept on disk.

A wheel cannot hold them for every architecture and driver; the sources are small, and compile within a minute or two.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import ConfigError, RuntimeUnavailable, StorageError, VersionMismatch
from edge_rt.system.files import write_atomically
from edge_rt.system.machine import install_command

OLDEST_COMPUTE: Final = 75
"""10 * major + minor of the oldest architecture: it multiplies small integers on tensor cores."""
_OPTIONS: Final = ("-default-device", "--fmad=false", "-std=c++17")
_ELF: Final = b"\x7fELF"
_BUILDS_KEPT: Final = 4
"""Files of one source and architecture that stay in the cache, as several installations of a user share it."""
_FILE_NAME: Final = re.compile(r".+-sm_(\d+)-[0-9a-f]{32}\.cubin")
_SYSTEM_NAMES: Final = ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2")
_SYSTEM_FOLDER: Final = Path("/usr/local/cuda/lib64")  # of JetPack


class Nvrtc:
    """NVIDIA's run-time compiler.

    Args:
        path: the library; None looks for a wheel's, then for the system's.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._library = _load(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise RuntimeUnavailable("NVIDIA's compiler failed.", f"{name} returned {code}.", "Install edge-rt again.")

    def compile(self, name: str, source: str, compute: int, folders: tuple[Path, ...]) -> bytes:
        """Return the cubin of a source.

        Args:
            compute: 10 * major + minor of the architecture.
        """
        if compute not in (known := self.architectures()):
            raise RuntimeUnavailable(
                f"NVIDIA's compiler here knows no architecture sm_{compute}.",
                f"NVRTC {self.version[0]}.{self.version[1]} knows {', '.join(f'sm_{one}' for one in known)}.",
                f"Install a newer one: {install_command('cuda', upgrade=True)}, or use the device cpu.",
            )
        options = (f"--gpu-architecture=sm_{compute}", *_OPTIONS, *(f"-I{folder}" for folder in folders))
        return self._compile(name, source, options, f"sm_{compute}", "nvrtcGetCUBIN")

    @functools.cached_property
    def build(self) -> bytes:
        """What tells this build of the compiler from others: the PTX that it makes of an empty program.

        Its first lines name release and build number. ``nvrtcVersion`` knows no patch release, a wheel's file is named
        by the major version, and hashing that file takes ten times as long: 200 ms against 20.
        """
        return self._compile("empty.cu", "", (), "an empty program", "nvrtcGetPTX")

    def _compile(self, name: str, source: str, options: Sequence[str], what: str, result: str) -> bytes:
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if code := self._library.nvrtcCompileProgram(program, len(options), encoded):
                log = self._read(program, "nvrtcGetProgramLog").decode(errors="replace").strip("\0 \n")
                raise RuntimeUnavailable(
                    "The kernels could not be compiled for this GPU.",
                    f"NVRTC {self.version[0]}.{self.version[1]}, {what}, code {code}: {log[:600]}",
                    f"Install newer ones: {install_command('cuda', upgrade=True)}, or use the device cpu.",
                )
            return self._read(program, result)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def architectures(self) -> tuple[int, ...]:
        """Return the architectures that it compiles for, as 10 * major + minor."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(found)

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(what, program, content)
        return content.raw


def _candidates() -> Iterator[str]:
    for folder in map(Path, sys.path):
        for pattern in ("nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*"):
            yield from map(str, sorted(folder.glob(pattern), reverse=True))
    for name in _SYSTEM_NAMES:
        yield str(_SYSTEM_FOLDER / name)
        yield name


def _load(path: Path | None) -> ctypes.CDLL:
    for candidate in [str(path)] if path is not None else _candidates():
        # The compiler opens this library by its bare name, and some of its wheels do not say that it lies beside it.
        for builtins in Path(candidate).parent.glob("libnvrtc-builtins.so.*") if "/" in candidate else ():
            with suppress(OSError):
                ctypes.CDLL(str(builtins))
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise _no_compiler()


def _no_compiler() -> RuntimeUnavailable:
    return RuntimeUnavailable(
        "NVIDIA's run-time compiler is not installed, which makes the kernels for this machine's GPU.",
        "No libnvrtc was found in this Python's packages or in the system.",
        f"Install it: {install_command('cuda')}, or use the device cpu.",
    )


def installed_nvrtcs() -> Iterator[Nvrtc]:
    """Yield the compilers of this machine, those of wheels first."""
    for candidate in _candidates():
        try:
            yield Nvrtc(Path(candidate))
        except RuntimeUnavailable:
            continue


def nvrtc_for(driver_version: int, found: Iterable[Nvrtc] | None = None) -> Nvrtc:
    """Return the first compiler whose kernels a driver loads: the driver must not be of an older major version.

    Minor versions do not matter: a driver runs machine code that any release of its major version made, and of older
    ones ("Minor Version Compatibility" in NVIDIA's CUDA Compatibility). PTX it would refuse of a newer minor version;
    kernels are cubins for the GPU's own architecture, and hold none.

    Args:
        driver_version: of the driver, such as 12040 for CUDA 12.4.
        found: the compilers; None: those of this machine.
    """
    newer = []
    for nvrtc in installed_nvrtcs() if found is None else found:
        if nvrtc.version[0] <= driver_version // 1000:
            return nvrtc
        newer.append(nvrtc)
    if not newer:
        raise _no_compiler()
    major, minor = newer[0].version
    raise VersionMismatch(
        "The GPU's driver is too old for the installed compiler.",
        f"The driver is of CUDA {driver_version // 1000}.{driver_version % 1000 // 10}, NVRTC of {major}.{minor}.",
        f"Update the driver, or install an older compiler: pip install nvidia-cuda-nvrtc-cu{driver_version // 1000}.",
    )


def any_nvrtc() -> Nvrtc:
    """Return the first compiler of this machine."""
    for nvrtc in installed_nvrtcs():
        return nvrtc
    raise _no_compiler()


def parse_architecture(text: str) -> int:
    """Read the name of an architecture, such as ``"sm_87"``, as 10 * major + minor."""
    number = text.removeprefix("sm_")
    if number == text or not number.isascii() or not number.isdecimal() or not 2 <= len(number) <= 3:
        raise ConfigError(
            "The architecture is unknown.",
            f"Got {text!r:.40}.",
            "Name it as NVIDIA does: sm_75 to sm_121, such as sm_87 for Jetson Orin and sm_89 for RTX 40.",
        )
    check_compute(int(number))
    return int(number)


def check_compute(compute: int) -> None:
    """Refuse a GPU that the kernels cannot run on.

    Args:
        compute: 10 * major + minor of its architecture.
    """
    if compute < OLDEST_COMPUTE:
        raise RuntimeUnavailable(
            "The GPU is too old.",
            f"It is of compute capability {compute / 10}, at least {OLDEST_COMPUTE / 10} is needed.",
            "Use the device cpu.",
        )


def kernel_files(sources: Path) -> tuple[Path, ...]:
    """Return the files of kernels in a folder of sources, in order."""
    return tuple(sorted(sources.glob("ops/*/*_cuda.cu")))


def include_folders(sources: Path) -> tuple[Path, ...]:
    """Return where the compiler looks for what the kernels in a folder of sources include."""
    return sources, sources / "gpu" / "cuda" / "rtc"


def kernel_paths(nvrtc: Nvrtc, compute: int, *, sources: Path, cache: Path) -> dict[Path, Path]:
    """Return source -> the file in the cache that what is compiled of it has, for all files of kernels.

    Its name has the architecture, and a hash of everything that the cubin depends on.

    Args:
        compute: 10 * major + minor of the architecture.
        cache: folder of files that may be deleted at any time.
    """
    files = kernel_files(sources)
    if not files:
        raise RuntimeUnavailable(
            "edge-rt was installed without its kernels for GPUs.", f"{sources} holds none.", "Install edge-rt again."
        )
    # Of all sources: which file includes which is the compiler's business.
    digest = hashlib.sha256(repr((nvrtc.build, compute, _OPTIONS)).encode())
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(sources).as_posix()}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    key = digest.hexdigest()[:32]
    return {path: cache / f"{path.stem}-sm_{compute}-{key}.cubin" for path in files}


def _kept(path: Path) -> bytes:
    """Return a file of the cache, nothing if it lacks it. From now on it is the last one that was used."""
    try:
        cubin = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read.",
            f"{error.strerror}.",
            "Check its permissions, or delete it: it is compiled again.",
        ) from error
    # Another user's, or on a disk that is only read: nothing is deleted there either.
    with suppress(OSError):
        os.utime(path)
    return cubin


def _delete_old(written: Path) -> None:
    """Delete what other sources and compilers made of the same file for the same architecture, but the last used ones.

    An installation that still wants a deleted one compiles it again; who has read it needs it no more.
    """
    name, _, _ = written.stem.rpartition("-")  # without the hash
    others = []
    # Another process may delete them at the same time. What cannot be deleted is tried again at the next compilation.
    for path in written.parent.glob(f"{name}-*.cubin"):
        with suppress(OSError):
            if path != written:
                others.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(others, reverse=True)[_BUILDS_KEPT - 1 :]:
        with suppress(OSError):
            path.unlink()


def compiled_kernels(nvrtc: Nvrtc, compute: int, *, sources: Path, cache: Path) -> dict[str, bytes]:
    """Return the cubins of all files of kernels; each is compiled if the cache lacks it.

    Arguments as of ``kernel_paths``.

    Returns:
        Name of a source -> its cubin.
    """
    cubins = {}
    for path, kept in kernel_paths(nvrtc, compute, sources=sources, cache=cache).items():
        cubin = _kept(kept)
        if not cubin.startswith(_ELF):
            cubin = nvrtc.compile(path.name, path.read_text(), compute, include_folders(sources))
            write_atomically(kept, [cubin], parents=True)
            _delete_old(kept)
        cubins[path.stem] = cubin
    return cubins


@dataclass(frozen=True)
class CacheContents:
    """Compiled kernels on disk.

    Attributes:
        architectures: that they are for, as 10 * major + minor, ascending.
    """

    folder: Path
    files: int
    size_bytes: int
    architectures: tuple[int, ...]


def cache_contents(cache: Path) -> CacheContents:
    """Return what a cache of compiled kernels holds; one that does not exist holds nothing."""
    sizes, computes = [], set()
    try:
        for path in cache.iterdir():
            if (named := _FILE_NAME.fullmatch(path.name)) is None:
                continue
            # Another process may delete it now.
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
                computes.add(int(named[1]))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(
            f"The cache of compiled kernels, {cache}, cannot be read.",
            f"{error.strerror}.",
            "Check its permissions, or delete it: kernels are compiled again.",
        ) from error
    return CacheContents(cache, len(sizes), sum(sizes), tuple(sorted(computes)))
