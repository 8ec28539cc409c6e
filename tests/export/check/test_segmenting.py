"""Packages that are cut at exits: what is written, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest

from edge_rt.errors import ConfigError, InvalidPackage
from edge_rt.export import export_model
from edge_rt.export.check.segmenting import cut_graph
from edge_rt.package.exits import MAX_EXITS, parse_exits, require_exits
from edge_rt.package.reader import open_package
from tests.helpers.graphs import Built
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, edit_manifest, listing, manifest_setter
from tests.helpers.segmented import EXITS, LAYERS


def test_segments_cover_the_layers_and_share_the_weights(segmented):
    cut, whole = open_package(segmented.cut), open_package(segmented.whole)
    ranges = [(segment.first_layer, segment.end_layer) for segment in cut.manifest.segments]
    assert ranges == list(zip((0, *EXITS), (*EXITS, LAYERS), strict=True))
    assert cut.manifest.exits == EXITS
    assert cut.manifest.files["weights.bin"] == whole.manifest.files["weights.bin"]
    graphs = ["head.onnx", *(f"model.{index}.onnx" for index in range(len(EXITS) + 1))]
    assert [name for name in listing(segmented.cut) if name.endswith(".onnx")] == graphs


def test_packages_without_exits_say_nothing_of_them(segmented, small_gguf, native_package, tmp_path):
    document = json.loads((segmented.whole / "manifest.json").read_text())
    assert "exit_head" not in document
    assert document["segments"] == [{"name": "model", "graph": "model.onnx", "first_layer": 0, "end_layer": LAYERS}]
    export_model(small_gguf, tmp_path / "p", profile="native", exits=())
    assert (tmp_path / "p" / "manifest.json").read_bytes() == (native_package / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("exits", "problem"),
    [
        ((0,), "Got 0; the model has 2 layers"),
        ((2,), "Got 2; the model has 2 layers"),
        ((1, 1), "Got 1, 1"),
        ((-1, 1), "Got -1, 1"),
        (tuple(range(1, MAX_EXITS + 2)), f"at most {MAX_EXITS}"),
    ],
    ids=str,
)
def test_bad_exits_are_refused_before_anything_is_written(exits, problem, small_gguf, tmp_path):
    require_native()
    with pytest.raises(ConfigError, match=problem):
        export_model(small_gguf, tmp_path / "p", profile="native", exits=exits)
    assert listing(tmp_path) == []


def test_exits_must_rise():
    require_exits((2, 5, 9), 10, "native")
    with pytest.raises(ConfigError, match=r"rising order\..*5, 2, 9"):
        require_exits((5, 2, 9), 10, "native")


def test_other_op_profiles_have_no_exits(small_gguf, tmp_path):
    with pytest.raises(ConfigError, match="need the native op profile"):
        export_model(small_gguf, tmp_path / "p", profile="portable", exits=(1,))
    with pytest.raises(ConfigError, match="does not carry these options: exits"):
        export_model(small_gguf, tmp_path / "p", via="transformers", exits=(1,))
    assert listing(tmp_path) == []


def test_lists():
    assert parse_exits("6, 10,15") == (6, 10, 15)
    for text in ("", "6,", "six", "6 10", "1.5", "-3", "²", "9" * 4000):
        with pytest.raises(ConfigError, match="must be a list of layer numbers"):
            parse_exits(text)


def test_parts_that_differ_from_the_whole_are_refused(small_gguf, tmp_path):
    require_native()
    other = lambda decoder: dataclasses.replace(decoder, norm_epsilon=1e-2)  # noqa: E731
    built = Built(small_gguf, tmp_path, "int8", profile="native", change_decoder=other)
    checkpoint = SimpleNamespace(decoder=built.decoder, profile=built.profile, weights=built.weights)
    with pytest.raises(InvalidPackage, match="cut at the exits do not compute"):
        cut_graph(checkpoint, built.layout, (1,), tmp_path)


def shift_segment(document):
    document["segments"][1]["first_layer"] += 1


def drop_segment(document):
    del document["segments"][1]


def same_graph(document):
    document["segments"][1]["graph"] = document["segments"][0]["graph"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (shift_segment, "the segments are not the model's 6 layers"),
        (drop_segment, "the segments are not the model's 6 layers"),
        (manifest_setter("segments.0.first_layer", 1), "the segments are not"),
        (manifest_setter("segments.3.end_layer", 7), "the segments are not"),
        (same_graph, "two segments have one graph"),
        (manifest_setter("exit_head", KeyError), "'manifest.exit_head' does not fit"),
        (manifest_setter("exit_head", "model.0.onnx"), "two segments have one graph"),
        (manifest_setter("exit_head", "missing.onnx"), "names files it does not list"),
        (manifest_setter("exit_head", 5), "'manifest.exit_head' has the wrong type"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(change, problem, segmented, tmp_path):
    package = copied(segmented.cut, tmp_path)
    edit_manifest(package, change)
    with pytest.raises(InvalidPackage, match=problem):
        open_package(package)


def test_a_head_needs_several_segments(segmented, tmp_path):
    package = copied(segmented.whole, tmp_path)
    edit_manifest(package, manifest_setter("exit_head", "model.onnx"))
    with pytest.raises(InvalidPackage, match="exit_head' does not fit"):
        open_package(package)
