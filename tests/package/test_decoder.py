"""Descriptions of decoders: what contradicts itself, and manifests that have one."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export import export_model
from edge_rt.export.families.rope import default_rope
from edge_rt.package.decoder import Decoder, Dimensions
from edge_rt.package.documents import build, to_document
from edge_rt.package.layers import Experts, FeedForward, GatedDelta, Layer, ShortConv, StateSpace
from edge_rt.package.reader import open_package
from tests.helpers.arrays import tiny_decoder
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.portable_profile import require_portable_windows


def changed(decoder, attention=None, **changes):
    kind = decoder.kinds[0]
    if attention:
        other = dataclasses.replace(kind, attention=dataclasses.replace(kind.attention, **attention))
        changes |= {"kinds": (kind, other), "pattern": (0, 1)}
    return dataclasses.replace(decoder, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": ()}, "no layers"),
        ({"pattern": (0, 1)}, "a kind that is not there"),
        ({"pattern": (0, -1)}, "a kind that is not there"),
        ({"ropes": (default_rope(100.0, 6),)}, "more dimensions are rotated"),
        ({"norm": "batch"}, "norm is unknown"),
        ({"attention": {"num_heads": 3, "num_kv_heads": 2}}, "num_heads, 3, is not a multiple"),
        ({"attention": {"rope": 1}}, "a rotation that is not there"),
        ({"attention": {"qk_norm": "both"}}, "norm of queries and keys"),
        ({"attention": {"window": -1}}, "below 0"),
        ({"attention": {"kv_from": 1}}, "a layer like it"),
        ({"attention": {"kv_from": 0, "head_dim": 64}}, "a layer like it"),
        ({"attention": {"kv_from": 0, "norms_values": True}}, "values of its own"),
        ({"per_layer_embedding": 1 << 30}, "per_layer_embedding"),
        ({"kinds": (Layer(None, FeedForward(8), short_conv=ShortConv(3)),)}, "no layer has attention"),
    ],
)
def test_contradictions(changes, message):
    with pytest.raises(ValueError, match=message):
        changed(tiny_decoder(), **changes).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "too few or too many experts"),
        ({"count": 4097}, "too few or too many experts"),
        ({"chosen": 5}, "more experts are chosen"),
        ({"chosen": 0}, "more experts are chosen"),
        ({"gating": "hash"}, "how experts are weighted"),
        ({"scale": float("nan")}, "factor that is no number"),
        ({"epsilon": -1.0}, "divided by less than 0"),
        ({"each": FeedForward(8, limit=-1.0)}, "limit that is no number"),
        ({"each": FeedForward(8, "gelu", limit=7.0)}, "limits that it cannot have"),
        ({"groups": 0}, "no groups of experts"),
        ({"groups": 2, "chosen_groups": 3}, "no groups of experts"),
        ({"groups": 3}, "4 experts are not in 3 groups of two or more"),
        ({"groups": 4}, "4 experts are not in 4 groups of two or more"),
        ({"groups": 2, "chosen": 3}, "than chosen groups have"),
        ({"latent": -1}, "latent rows have a size out of range"),
        ({"latent": 1 << 20}, "latent rows have a size out of range"),
        ({"has_shared_gate": True}, "that is not there has a gate"),
    ],
)
def test_experts_that_contradict_themselves(changes, message):
    kind = tiny_decoder().kinds[0]
    experts = dataclasses.replace(Experts(4, 2, FeedForward(8)), **changes)
    with pytest.raises(ValueError, match=message):
        changed(tiny_decoder(), kinds=(dataclasses.replace(kind, feed_forward=None, experts=experts),)).check()


def test_a_layer_may_have_one_step_but_not_all_the_same():
    plain = tiny_decoder()
    attention = dataclasses.replace(plain.kinds[0], feed_forward=None)
    fed = dataclasses.replace(plain.kinds[0], attention=None)
    changed(plain, kinds=(attention, fed), pattern=(0, 1)).check()
    empty = dataclasses.replace(fed, feed_forward=None)
    for kinds, message in (
        ((attention,), "no layer has a feed-forward"),
        ((fed,), "no layer has attention"),
        ((attention, fed, empty), "neither a mixer nor a feed-forward"),
    ):
        with pytest.raises(ValueError, match=message):
            changed(plain, kinds=kinds, pattern=tuple(range(len(kinds)))).check()


def test_no_rotation_is_needed_where_none_is_named():
    kind = tiny_decoder().kinds[0]
    still = dataclasses.replace(kind, attention=dataclasses.replace(kind.attention, rope=None))
    changed(tiny_decoder(), kinds=(still,), ropes=()).check()
    with pytest.raises(ValueError, match="names a rotation that is not there"):
        changed(tiny_decoder(), ropes=()).check()


def test_attention_may_have_a_state_space_beside_it():
    kind = dataclasses.replace(tiny_decoder().kinds[0], state_space=StateSpace(6, 8, 2, 8, 3))
    both = changed(tiny_decoder(), kinds=(kind,))
    both.check()
    assert both.attention_layers == (0, 1)


@pytest.mark.parametrize(
    ("mixers", "message"),
    [
        ({"short_conv": ShortConv(3)}, "several mixers"),
        ({"gated_delta": GatedDelta(2, 6, 8, 8, 3)}, "several mixers"),
        ({"attention": None, "short_conv": ShortConv(3), "state_space": StateSpace(6, 8, 2, 8, 3)}, "several mixers"),
        ({"attention": None, "short_conv": ShortConv(0)}, "convolution has a size out of range"),
        ({"attention": None, "gated_delta": GatedDelta(4, 6, 8, 8, 3)}, "no multiple of 4 heads of keys"),
        ({"attention": None, "gated_delta": GatedDelta(0, 6, 8, 8, 3)}, "heads out of range"),
        ({"attention": None, "gated_delta": GatedDelta(2, 6, 1 << 20, 8, 3)}, "size out of range"),
        ({"attention": None, "gated_delta": GatedDelta(2, 6, 8, 8, 3, epsilon=0.0)}, "epsilon is out of range"),
        ({"attention": None, "state_space": StateSpace(6, 8, 4, 8, 3)}, "no multiple of 4 groups"),
        ({"attention": None, "state_space": StateSpace(6, 8, 0, 8, 3)}, "heads out of range"),
        (
            {"attention": None, "state_space": StateSpace(6, 8, 2, 8, 3, norm="after")},
            "norm of a state space is unknown",
        ),
        ({"attention": None, "state_space": StateSpace(6, 8, 2, 8, 0)}, "convolution has a size out of range"),
        ({"attention": None, "short_conv": ShortConv(65)}, "convolution has a size out of range"),
    ],
)
def test_mixers_that_contradict_each_other(mixers, message):
    kind = tiny_decoder().kinds[0]
    with pytest.raises(ValueError, match=message):
        changed(tiny_decoder(), kinds=(kind, dataclasses.replace(kind, **mixers)), pattern=(0, 1)).check()


def test_a_document_has_rare_parts_only_where_they_are():
    plain = tiny_decoder()
    conv = dataclasses.replace(plain.kinds[0], attention=None, short_conv=ShortConv(3))
    mixed = changed(plain, kinds=(plain.kinds[0], conv), pattern=(0, 1, 1))
    mixed.check()
    for decoder in (plain, mixed):
        document = json.loads(json.dumps(to_document(decoder)))
        assert build(Decoder, document, "decoder", lambda *what: AssertionError(what)) == decoder
        assert [kind.get("short_conv") for kind in document["kinds"]][1:] == [{"taps": 3, "has_bias": False}] * (
            decoder is mixed
        )
    assert "short_conv" not in to_document(plain)["kinds"][0]
    assert mixed.attention_layers == (0,)
    assert mixed.conv_layers == (1, 2)
    assert (mixed.layer_windows, mixed.ring_window, mixed.sliding_window) == ((0, 3, 3), 3, 0)


@pytest.mark.parametrize(
    ("own", "shared", "period", "divisions"),
    [
        (15, 20, 5, range(1, 14)),  # Gemma 4 E2B: the last layer with a window before them is 13, the full one 14
        (24, 18, 6, range(1, 23)),  # E4B
        (35, 0, 5, range(1, 35)),
        (1, 3, 4, ()),
    ],
)
def test_layers_are_divided_where_no_keys_are_read_across(own, shared, period, divisions):
    dims = Dimensions("g", "gemma4", 64, own + shared, 4, 2, 16, 128, vocab_size=100, context_length=64)
    windows = [0 if (layer + 1) % period == 0 else 16 for layer in range(own + shared)]
    last = {window: layer for layer, window in enumerate(windows[:own])}
    sources = [last.get(window, 0) if layer >= own else None for layer, window in enumerate(windows)]
    layers = tuple(
        Layer(dims.attention(window=16 if own == 1 else window, kv_from=source), dims.feed_forward())
        for window, source in zip(windows, sources, strict=True)
    )
    decoder = dims.decoder("gemma4", layers, default_rope(1e4, 16))
    decoder.check()
    assert decoder.divisions == tuple(divisions)


def test_windows_of_two_sizes():
    kind = tiny_decoder().kinds[0]
    kinds = tuple(
        dataclasses.replace(kind, attention=dataclasses.replace(kind.attention, window=size)) for size in (4, 8)
    )
    with pytest.raises(ValueError, match="windows differ"):
        changed(tiny_decoder(), kinds=kinds, pattern=(0, 1)).check()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    require_portable_windows()
    folder = tmp_path_factory.mktemp("m")
    case = load_case("gemma3_text")
    export_model(write_folder(folder / "folder", case), folder / "p", profile="portable", weights="keep")
    return folder / "p"


class TestManifest:
    def test_it_has_the_description(self, package):
        manifest = open_package(package).manifest
        decoder = manifest.decoder
        assert manifest.model.family == "gemma3"
        assert decoder.pattern == (0, 0, 0, 0, 0, 1)
        assert [rope.kind for rope in decoder.ropes] == ["linear", "default"]
        assert [window > 0 for window in manifest.model.layer_windows] == [True] * 5 + [False]
        assert manifest.to_bytes() == (package / "manifest.json").read_bytes()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d["decoder"].update(pattern=[0] * 5), "the segments are not the model's 5 layers"),
            (lambda d: d["decoder"].update(pattern=[9] * 6), "contradicts itself"),
            (lambda d: d["decoder"].update(surprise=1), "wrong fields"),
            (lambda d: d["decoder"]["kinds"][0]["attention"].update(window="8"), "wrong type"),
        ],
    )
    def test_refused(self, package, change, message, tmp_path):
        document = json.loads((package / "manifest.json").read_bytes())
        change(document)
        copy = tmp_path / "p"
        copy.mkdir()
        for file in package.iterdir():
            (copy / file.name).symlink_to(file)
        (copy / "manifest.json").unlink()
        (copy / "manifest.json").write_text(json.dumps(document))
        with pytest.raises(InvalidPackage, match=message):
            open_package(copy)
