"""A name is judged alike on every system: what is refused on one could not be copied to another."""

from __future__ import annotations

from pathlib import PureWindowsPath

import pytest
from hypothesis import given, strategies as st

from edge_rt.system.checkpoint_names import is_device_name, is_portable_name, is_portable_path

DEVICES = ["con", "CON", "nul", "Aux.txt", "prn.tar.gz", "com1", "COM9.gguf", "lpt1", "com\u00b9", "conin$", "nul .txt"]
OTHERS = [
    "",
    ".",
    "..",
    "a.",
    "a ",
    "a:b",
    "C:",
    "a<b",
    "a>b",
    'a"b',
    "a|b",
    "a?",
    "a*",
    "a\\b",
    "a/b",
    "a\0",
    "a\n",
    "a\x7f",
]


@pytest.mark.parametrize("name", [*DEVICES, *OTHERS, "x" * 256, "\u00fc" * 128])
def test_what_some_system_cannot_have(name):
    assert not is_portable_name(name)
    assert name == "a/b" or not is_portable_path(f"folder/{name}")


@pytest.mark.parametrize(
    "name", ["a", "model.onnx", ".hidden", "a b", "console", "com10", "com", "nul-1", "x" * 255, "\u00fc"]
)
def test_what_every_system_can_have(name):
    assert is_portable_name(name)
    assert is_portable_path(f"folder/{name}")


@given(st.text(max_size=12))
def test_a_portable_name_is_one_part_on_windows_and_no_device(name):
    if is_portable_name(name):
        path = PureWindowsPath("folder") / name
        assert (path.name, path.drive, path.parent) == (name, "", PureWindowsPath("folder"))


@pytest.mark.parametrize("name", DEVICES)
def test_devices(name):
    assert is_device_name(name)
