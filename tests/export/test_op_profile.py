from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_rt.errors import ConfigError, RuntimeUnavailable, UnsupportedModel
from edge_rt.export.op_profile import PROFILES, choose_profile
from edge_rt.export.traced.export import PROFILE as TRACED
from edge_rt.ort.op_library import library_path
from edge_rt.package.manifest import KV_FORMATS, OP_PROFILES, WEIGHT_LAYOUTS
from tests.helpers.native_profile import require_native

HEADS = SimpleNamespace(num_heads=9, head_dim=64)


@pytest.fixture
def library():
    require_native()
    return library_path()


@pytest.mark.parametrize(
    ("name", "activations", "chosen"),
    [
        (None, "int8", "native"),
        (None, "float", "portable"),
        ("portable", "int8", "portable"),
        ("portable", "float", "portable"),
        ("native", "int8", "native"),
    ],
)
def test_the_choice_where_native_operators_run(library, name, activations, chosen):
    assert choose_profile(name, activations, library, HEADS).name == chosen


@pytest.mark.parametrize("name", [None, "portable"])
def test_the_choice_where_they_do_not(name, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    for missing in (None, broken):
        assert choose_profile(name, "int8", missing, HEADS).name == "portable"


def test_native_operators_that_are_asked_for_and_missing(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    for missing in (None, broken):
        with pytest.raises(RuntimeUnavailable, match="--profile portable") as caught:
            choose_profile("native", "int8", missing, HEADS)
        assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("name", "activations", "message"),
    [
        ("native", "float", "The native op profile has no float activations"),
        ("neural", "int8", r"Got 'neural'\. Choose one of native, portable"),
        ("", "int8", "The op profile is unknown"),
        (None, "int4", r"Got 'int4'\. Choose one of auto, int8, float"),
    ],
)
def test_what_does_not_go_together(name, activations, message):
    with pytest.raises(ConfigError, match=message):
        choose_profile(name, activations, None, HEADS)


@pytest.mark.parametrize(("heads", "dim"), [(2, 528), (2, 33), (2048, 64)])
def test_heads_that_the_native_operators_do_not_take(library, heads, dim):
    odd = SimpleNamespace(num_heads=heads, head_dim=dim)
    assert choose_profile(None, "int8", library, odd).name == "portable"
    with pytest.raises(UnsupportedModel, match="--profile portable"):
        choose_profile("native", "int8", library, odd)


def test_every_profile_of_the_format_can_be_written():
    # Graphs of other exporters have a way of their own.
    assert {*PROFILES, TRACED} == set(OP_PROFILES) == set(KV_FORMATS) == set(WEIGHT_LAYOUTS)
