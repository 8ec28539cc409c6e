"""Looks into the wheels that ``.ci/wheels`` built: tags, files, what libraries export and what they need.

Usage: ``python .ci/check_wheels.py FOLDER``; needs auditwheel and lief.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import lief

PROVIDERS = ("libedge_rt_gpu.so", "libedge_rt_vulkan.so")
LIBRARIES = {
    "manylinux_2_28_x86_64": ("libedge_rt_ops.so", *PROVIDERS),
    "manylinux_2_28_aarch64": ("libedge_rt_ops.so", *PROVIDERS),
    "win_amd64": ("edge_rt_ops.dll",),
    "macosx_11_0_arm64": ("libedge_rt_ops.dylib",),
}
CSRC = Path(__file__).parents[1] / "csrc"
PROVIDER_EXPORTS = {
    "CreateEpFactories", "ReleaseEpFactory", "edge_rt_gpu_abi_version", "edge_rt_gpu_describe", "edge_rt_gpu_memory",
    "edge_rt_gpu_self_test", "edge_rt_gpu_set_kernels",
}  # fmt: skip
NEWEST_GLIBC = (2, 28)
# zig's linker for macOS reads no list of exports, and adds these: names of the file itself, and C++'s operators new and
# delete, weak and so one for the whole process whoever brings them.
ZIG_EXPORTS = {"_mh_dylib_header", "__dso_handle"} | {
    f"_Z{name}{ending}{alignment}"
    for name, endings in (("nw", "m"), ("na", "m"), ("dl", ("Pv", "Pvm")), ("da", ("Pv", "Pvm")))
    for ending in endings
    for alignment in ("", "St11align_val_t")
}
SYSTEM_LIBRARIES = re.compile(
    r"lib(c|m|dl|pthread)\.so\.\d|ld-linux-[-a-z0-9_]+\.so\.\d"  # Linux
    r"|(kernel32|ntdll|advapi32|api-ms-win-crt-[-a-z0-9]+)\.dll"  # Windows
    r"|/usr/lib/libSystem\.B\.dylib",  # macOS
    re.IGNORECASE,
)


def exports() -> set[str]:
    """Return the names that a library may export: those of ``csrc/exports.map``."""
    text = (CSRC / "exports.map").read_text()
    return set(re.findall(r"\w+", text.partition("global:")[2].partition("local:")[0]))


def check_library(path: Path) -> None:
    """Check what a library exports, and that it needs nothing but its system."""
    library = lief.parse(path)
    if isinstance(library, lief.ELF.Binary):
        found = {symbol.name for symbol in library.exported_symbols}
        needed = list(library.libraries)
    elif isinstance(library, lief.PE.Binary):
        found = {entry.name for entry in library.get_export().entries}
        needed = [entry.name for entry in library.imports]
    else:
        assert library.has_code_signature, "64-bit ARM runs nothing that is unsigned"
        found = {symbol.name.removeprefix("_") for symbol in library.exported_symbols} - ZIG_EXPORTS
        needed = [entry.name for entry in library.libraries if entry.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    wanted = PROVIDER_EXPORTS if path.name in PROVIDERS else exports()
    assert found == wanted, f"{path.name} exports {sorted(found)}, must export {sorted(wanted)}"
    foreign = [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)]
    assert not foreign, f"{path.name} needs {foreign}"
    print(f"  {path.name}: {path.stat().st_size} bytes, needs {', '.join(sorted(needed))}")


def check_kernels(names: set[str]) -> None:
    """Check that all kernels for GPUs are there: sources of NVIDIA's, which is compiled where it runs, and SPIR-V."""
    folders = (CSRC / "gpu", *(CSRC / "ops").iterdir())
    vulkan = {path.stem for folder in folders for path in folder.glob("vulkan/*.comp")}
    cuda = {path.relative_to(CSRC).as_posix() for path in CSRC.glob("ops/*/*_cuda.cu")}
    wanted = {f"vulkan/{name}.spv" for name in vulkan} | {f"cuda/{name}" for name in cuda}
    missing = {name for name in wanted if f"edge_rt/native/{name}" not in names}
    assert not missing, f"the wheel lacks {sorted(missing)}"
    print(f"  {len(vulkan)} kernels for Vulkan, {len(cuda)} sources for CUDA")


def check_glibc(wheel: Path) -> None:
    """Check that no symbol is younger than the glibc that the wheel's name promises."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    text = " ".join(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
    tag = re.search(r'following platform tag: "manylinux_(\d+)_(\d+)_\w+"', text)
    assert tag is not None, text
    assert (int(tag[1]), int(tag[2])) <= NEWEST_GLIBC, text
    print(f"  auditwheel: {tag[0].rpartition(' ')[2]}")


def check_wheel(wheel: Path) -> str:
    """Check one wheel; returns its platform tag."""
    *_, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none"), wheel.name
    print(wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        tags = re.findall(r"^Tag: (\S+)$", archive.read(metadata).decode(), re.MULTILINE)
        assert tags == [f"py3-none-{platform}"], tags
        assert "Root-Is-Purelib: false" in archive.read(metadata).decode()
        kernels = {name for name in names if re.match(r"edge_rt/native/(cuda|vulkan)/", name)}
        native = {name for name in names if name.startswith("edge_rt/native/")} - kernels
        assert native == {f"edge_rt/native/{name}" for name in LIBRARIES[platform]}, native
        if platform.startswith("manylinux"):
            check_kernels(kernels)
        else:
            assert not kernels, kernels
        others = [name for name in names if not re.match(r"edge_rt/|edge_rt-[^/]+\.dist-info/", name)]
        assert not others, others
        sources = [name for name in names if name.endswith((".cc", ".h", ".inl", ".lib", ".a")) and name not in kernels]
        assert not sources, sources
        with tempfile.TemporaryDirectory() as folder:
            for name in sorted(native):
                check_library(Path(archive.extract(name, folder)))
    if platform.startswith("manylinux"):
        check_glibc(wheel)
    return platform


def main() -> None:
    """Check every wheel of a folder, and that none is missing."""
    found = sorted(check_wheel(wheel) for wheel in sorted(Path(sys.argv[1]).glob("*.whl")))
    assert found == sorted(LIBRARIES), found


if __name__ == "__main__":
    main()
