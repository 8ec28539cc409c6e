"""Descriptions of decoders: what is plain, what contradicts itself, and manifests that have one."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export import export_model
from edge_rt.export.families.rope import default_rope
from edge_rt.package.decoder import QueryScaling
from edge_rt.package.manifest import DECODER_GRAPH_VERSION, config_of
from edge_rt.package.reader import open_package
from tests.helpers.arrays import tiny_decoder
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.portable_profile import require_portable_windows

DIFFERENT = {
    "scale": {"attention": {"scale": 0.3}},
    "no rotation": {"attention": {"rope": None}},
    "softcap": {"attention": {"softcap": 30.0}},
    "norms of heads": {"attention": {"qk_norm": "head"}},
    "biases": {"attention": {"has_qkv_bias": True}},
    "growing queries": {"attention": {"query_scaling": QueryScaling(0.1, 8)}},
    "activation": {"feed_forward": {"activation": "gelu"}},
    "biases of the feed-forward": {"feed_forward": {"has_bias": True}},
    "post norms": {"layer": {"has_post_norms": True}},
    "embedding scale": {"embedding_scale": 2.0},
    "residual scale": {"residual_scale": 2.0},
    "logit scale": {"logit_scale": 2.0},
    "logit softcap": {"logit_softcap": 2.0},
    "layer norm": {"norm": "layer"},
    "a part of the head": {"ropes": (default_rope(100.0, 2),)},
}


class TestPlain:
    @pytest.mark.parametrize("options", [{}, {"attention": {"window": 8}}, {"sizes": {"is_tied": True}}])
    def test_llama(self, options):
        assert tiny_decoder(**options).is_plain

    @pytest.mark.parametrize("name", DIFFERENT)
    def test_others(self, name):
        assert not tiny_decoder(**DIFFERENT[name]).is_plain

    def test_windows_in_some_layers(self):
        plain = tiny_decoder()
        windowed = dataclasses.replace(
            plain.kinds[0], attention=dataclasses.replace(plain.kinds[0].attention, window=8)
        )
        mixed = dataclasses.replace(plain, kinds=(plain.kinds[0], windowed), pattern=(1, 0))
        assert not mixed.is_plain
        assert mixed.layer_windows == (8, 0)
        model = config_of(mixed, 1)
        assert (model.sliding_window, model.full_layers, model.layer_windows) == (8, (1,), (8, 0))


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
        ({"ropes": ()}, "no rotations"),
        ({"ropes": (default_rope(100.0, 6),)}, "more dimensions are rotated"),
        ({"norm": "batch"}, "norm is unknown"),
        ({"attention": {"num_heads": 2}}, "heads differ"),
        ({"attention": {"rope": 1}}, "a rotation that is not there"),
        ({"attention": {"qk_norm": "both"}}, "norm of queries and keys"),
        ({"attention": {"window": -1}}, "below 0"),
    ],
)
def test_contradictions(changes, message):
    with pytest.raises(ValueError, match=message):
        changed(tiny_decoder(), **changes).check()


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
        assert (manifest.graph_version, manifest.model.architecture) == (DECODER_GRAPH_VERSION, "gemma3")
        assert decoder.pattern == (0, 0, 0, 0, 0, 1)
        assert [rope.kind for rope in decoder.ropes] == ["linear", "default"]
        assert manifest.model.full_layers == (5,)
        assert manifest.to_bytes() == (package / "manifest.json").read_bytes()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d["decoder"].update(pattern=[0] * 5), "does not fit 'manifest.model'"),
            (lambda d: d["decoder"].update(pattern=[9] * 6), "contradicts itself"),
            (lambda d: d["decoder"].update(surprise=1), "wrong fields"),
            (lambda d: d["decoder"]["kinds"][0]["attention"].update(window="8"), "wrong type"),
            (lambda d: d["model"].update(full_layers=[]), "does not fit"),
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
