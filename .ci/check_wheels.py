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

LIBRARIES = {
    "manylinux_2_28_x86_64": "libedge_rt_ops.so",
    "manylinux_2_28_aarch64": "libedge_rt_ops.so",
    "win_amd64": "edge_rt_ops.dll",
    "macosx_11_0_arm64": "libedge_rt_ops.dylib",
}
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
    text = (Path(__file__).parents[1] / "csrc" / "exports.map").read_text()
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
    assert found == exports(), f"{path.name} exports {sorted(found)}, must export {sorted(exports())}"
    foreign = [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)]
    assert not foreign, f"{path.name} needs {foreign}"
    print(f"  {path.name}: {path.stat().st_size} bytes, needs {', '.join(sorted(needed))}")


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
        native = [name for name in names if name.startswith("edge_rt/native/")]
        assert native == [f"edge_rt/native/{LIBRARIES[platform]}"], native
        others = [name for name in names if not re.match(r"edge_rt/|edge_rt-[^/]+\.dist-info/", name)]
        assert not others, others
        sources = [name for name in names if name.endswith((".cc", ".h", ".inl", ".lib", ".a"))]
        assert not sources, sources
        with tempfile.TemporaryDirectory() as folder:
            check_library(Path(archive.extract(native[0], folder)))
    if platform.startswith("manylinux"):
        check_glibc(wheel)
    return platform


def main() -> None:
    """Check every wheel of a folder, and that none is missing."""
    found = sorted(check_wheel(wheel) for wheel in sorted(Path(sys.argv[1]).glob("*.whl")))
    assert found == sorted(LIBRARIES), found


if __name__ == "__main__":
    main()
