"""Kernels for GPUs: compiled, kept, and refused where they cannot run."""

from __future__ import annotations

import _ctypes
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from edge_rt.device.kernels import (
    CacheContents,
    Nvrtc,
    cache_contents,
    check_compute,
    compiled_kernels,
    include_folders,
    kernel_files,
    kernel_paths,
    nvrtc_for,
    parse_architecture,
)
from edge_rt.errors import ConfigError, RuntimeUnavailable, StorageError, VersionMismatch

SOURCES = Path(__file__).parents[2] / "csrc"


class FakeNvrtc:
    version = (13, 5)
    build = b"V13.5.37"

    def __init__(self):
        self.compiled = []

    def compile(self, name, source, compute, folders):
        self.compiled.append(name)
        return f"\x7fELF {name} for {compute}: {len(source)}".encode()


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources" / "ops" / "scale"
    folder.mkdir(parents=True)
    (folder / "scale_cuda.cu").write_text("kernel")
    (folder / "scale.h").write_text("header")
    return tmp_path / "sources"


def test_kernels_are_compiled_once(sources, tmp_path):
    nvrtc = FakeNvrtc()
    first = compiled_kernels(nvrtc, 87, sources=sources, cache=tmp_path / "cache")
    assert first == {"scale_cuda": b"\x7fELF scale_cuda.cu for 87: 6"}
    assert compiled_kernels(nvrtc, 87, sources=sources, cache=tmp_path / "cache") == first
    assert nvrtc.compiled == ["scale_cuda.cu"]


def test_they_are_compiled_again_when_anything_changes(sources, tmp_path):
    nvrtc = FakeNvrtc()
    for compute in (87, 89):
        compiled_kernels(nvrtc, compute, sources=sources, cache=tmp_path / "cache")
    (sources / "ops" / "scale" / "scale.h").write_text("Header")
    compiled_kernels(nvrtc, 87, sources=sources, cache=tmp_path / "cache")
    nvrtc.build = b"V13.5.38"
    compiled_kernels(nvrtc, 87, sources=sources, cache=tmp_path / "cache")
    assert len(nvrtc.compiled) == 4


def builds(nvrtc, compute, sources, cache, names, minutes=60):
    """Compile with builds of the compiler, one after the other, so many minutes ago, and return the file of each."""
    files = {}
    for name in names:
        nvrtc.build = name
        compiled_kernels(nvrtc, compute, sources=sources, cache=cache)
        (files[name],) = kernel_paths(nvrtc, compute, sources=sources, cache=cache).values()
        os.utime(files[name], (at := time.time() - 60 * minutes + len(files), at))
    return files


def test_the_last_used_builds_are_kept(sources, tmp_path):
    nvrtc, cache = FakeNvrtc(), tmp_path / "cache"
    others = builds(nvrtc, 89, sources, cache, (b"other",))
    files = builds(nvrtc, 87, sources, cache, (b"a", b"b", b"c", b"d"))
    nvrtc.build = b"a"  # in use again
    compiled_kernels(nvrtc, 87, sources=sources, cache=cache)
    assert len(nvrtc.compiled) == 5
    files |= builds(nvrtc, 87, sources, cache, (b"e", b"f"), minutes=30)
    assert {name for name, path in files.items() if path.exists()} == {b"a", b"d", b"e", b"f"}
    assert others[b"other"].exists()


def test_a_build_that_cannot_be_deleted_stays(sources, tmp_path):
    nvrtc, cache = FakeNvrtc(), tmp_path / "cache"
    (folder, *others) = builds(nvrtc, 87, sources, cache, (b"a", b"b", b"c", b"d")).values()
    older = folder.with_name(folder.name.replace(folder.stem[-32:], "0" * 32))
    folder.rename(older)
    folder.mkdir()
    for path, at in ((older, 1), (folder, 2)):
        os.utime(path, (at, at))
    builds(nvrtc, 87, sources, cache, (b"e",), minutes=30)
    assert folder.is_dir()
    assert not older.exists()
    assert all(path.exists() for path in others)


def test_the_contents_of_the_cache(sources, tmp_path):
    nvrtc, cache = FakeNvrtc(), tmp_path / "cache"
    assert cache_contents(cache) == CacheContents(cache, 0, 0, ())
    cubins = [compiled_kernels(nvrtc, compute, sources=sources, cache=cache) for compute in (120, 87)]
    (cache / "notes.txt").write_text("not ours")
    size = sum(len(cubin) for made in cubins for cubin in made.values())
    assert cache_contents(cache) == CacheContents(cache, 2, size, (87, 120))


def test_contents_that_cannot_be_read(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot be read\. Not a directory"):
        cache_contents(tmp_path / "cache")


def test_a_damaged_file_of_the_cache_is_compiled_again(sources, tmp_path):
    nvrtc = FakeNvrtc()
    first = compiled_kernels(nvrtc, 87, sources=sources, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(b"")
    assert compiled_kernels(nvrtc, 87, sources=sources, cache=tmp_path / "cache") == first
    assert kept.read_bytes() == first["scale_cuda"]


def test_a_cache_that_cannot_be_read(sources, tmp_path):
    (kept,) = kernel_paths(FakeNvrtc(), 87, sources=sources, cache=tmp_path / "cache").values()
    kept.mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot be read"):
        compiled_kernels(FakeNvrtc(), 87, sources=sources, cache=tmp_path / "cache")


def test_no_sources(tmp_path):
    with pytest.raises(RuntimeUnavailable, match="without its kernels"):
        compiled_kernels(FakeNvrtc(), 87, sources=tmp_path, cache=tmp_path)


def test_no_compiler(tmp_path):
    with pytest.raises(RuntimeUnavailable, match="nvidia-cuda-nvrtc"):
        Nvrtc(tmp_path / "libnvrtc.so.13")


def test_a_gpu_that_is_too_old():
    check_compute(75)
    with pytest.raises(RuntimeUnavailable, match=r"capability 6\.1, at least 7\.5"):
        check_compute(61)


def test_names_of_architectures():
    assert [parse_architecture(name) for name in ("sm_75", "sm_87", "sm_121")] == [75, 87, 121]
    for name in ("", "87", "sm_", "sm_9", "sm_87a", "compute_87", "sm_1000", "sm_²²"):
        with pytest.raises(ConfigError, match="architecture is unknown"):
            parse_architecture(name)


class TestTheCompilerForADriver:
    @staticmethod
    def compilers(*majors):
        found = [FakeNvrtc() for _ in majors]
        for nvrtc, major in zip(found, majors, strict=True):
            nvrtc.version = (major, 5)
        return found

    def test_the_first_that_is_not_newer(self):
        found = self.compilers(13, 12, 11)
        assert nvrtc_for(13010, found) is found[0]
        assert nvrtc_for(12040, found) is found[1]

    def test_all_are_newer(self):
        with pytest.raises(VersionMismatch, match=r"CUDA 12\.4, NVRTC of 13\.5") as caught:
            nvrtc_for(12040, self.compilers(13))
        assert "nvidia-cuda-nvrtc-cu12" in caught.value.action

    def test_there_is_none(self):
        with pytest.raises(RuntimeUnavailable, match="not installed") as caught:
            nvrtc_for(13000, [])
        assert type(caught.value) is RuntimeUnavailable
        assert "nvidia-cuda-nvrtc" in caught.value.action


@pytest.fixture
def nvrtc():
    try:
        return Nvrtc()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("compute", [75, 87])
def test_the_kernels_compile(nvrtc, compute, tmp_path):
    cubins = compiled_kernels(nvrtc, compute, sources=SOURCES, cache=tmp_path)
    assert set(cubins) == {path.stem for path in kernel_files(SOURCES)}
    assert all(cubin.startswith(b"\x7fELF") for cubin in cubins.values())


def test_a_build_is_told_from_others(nvrtc):
    major, minor = nvrtc.version
    assert f"V{major}.{minor}.".encode() in nvrtc.build
    assert nvrtc.build == Nvrtc().build


def test_what_does_not_compile(nvrtc):
    with pytest.raises(RuntimeUnavailable, match="no_such_name"):
        nvrtc.compile("wrong.cu", "int x = no_such_name;", 87, ())


def test_an_architecture_that_the_compiler_does_not_know(nvrtc):
    assert 87 in nvrtc.architectures()
    with pytest.raises(RuntimeUnavailable, match=r"knows no architecture sm_76.* sm_75, "):
        nvrtc.compile("name.cu", "", 76, ())


def test_what_the_compiler_opens_by_its_bare_name_is_loaded_before_it(tmp_path):
    """Wheels of CUDA 13.0 do not say that this library lies beside the compiler."""
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        shutil.copy(_ctypes.__file__, tmp_path / name)
    with pytest.raises(AttributeError, match="nvrtcVersion"):
        Nvrtc(tmp_path / "libnvrtc.so.13")
    assert str(tmp_path / "libnvrtc-builtins.so.13.0") in Path("/proc/self/maps").read_text()


def test_what_kernels_include_is_installed():
    """By CMake, for the compiler on the user's machine; what an emulated GPU needs is behind an #if."""
    rule = (SOURCES / "gpu" / "gpu.cmake").read_text()
    (installed,) = (set(folders.split("|")) for folders in re.findall(r'REGEX "/\(([a-z|]+)\)/', rule))
    assert not installed & set(re.findall(r'PATTERN "([a-z]+)" EXCLUDE', rule))
    left, seen = list(kernel_files(SOURCES)), set()
    while left:
        for name in re.findall(r'^#include "([^"]+)"', left.pop().read_text(), re.MULTILINE):
            if name in seen or name.startswith("tests/emulator/"):
                continue
            seen.add(name)
            (path,) = [folder / name for folder in include_folders(SOURCES) if (folder / name).is_file()]
            assert path.relative_to(SOURCES).parts[0] in installed, name
            left.append(path)
    assert len(seen) > 20
