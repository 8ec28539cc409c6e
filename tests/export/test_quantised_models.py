"""Whole models whose floats are quantised on the way: every option, from files and folders, in both op profiles."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidModelFile, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import hf_tensors, write_hf_folder
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing
from tests.helpers.pairs import all_pairs, with_slow
from tests.helpers.small import GREEDY

SIZES = {"narrow": {"layers": 2}, "wide": {"layers": 2, "hidden": 256, "ffn": 512}}
EXPECTED = {
    "keep": {"narrow": ({"F32"}, {"F32"}), "wide": ({"F32"}, {"F32"})},
    "int4": {"narrow": ({"Q8_0"}, {"IQ4_NL", "Q5_1"}), "wide": ({"Q8_0"}, {"IQ4_XS", "Q6_K"})},
    "int8": {"narrow": ({"Q8_0"}, {"Q8_0"}), "wide": ({"Q8_0"}, {"Q8_0"})},
    "f16": {"narrow": ({"F16"}, {"F16"}), "wide": ({"F16"}, {"F16"})},
    "f32": {"narrow": ({"F32"}, {"F32"}), "wide": ({"F32"}, {"F32"})},
}
"""Option -> widths -> types of embedding and head, and of the layers."""
PORTABLE_INT4 = ({"Q8_0"}, {"Q4_0", "Q8_0"})


def expected_types(weights, widths, profile):
    return PORTABLE_INT4 if (weights, profile) == ("int4", "portable") else EXPECTED[weights][widths]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of floats by widths; nobody may change them."""
    folder = tmp_path_factory.mktemp("floats")
    return {
        name: write_llama_gguf(
            folder / f"{name}.gguf", weight_type="F32", embedding_type="F32", output_type="F32", context=512,
            tied=name == "wide", **sizes,
        )
        for name, sizes in SIZES.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def sources(models, tmp_path_factory):
    """Path of a checkpoint by kind and widths."""
    folder = tmp_path_factory.mktemp("sources")
    found = {("gguf", name): model.path for name, model in models.items()}
    return found | {
        ("folder", name): write_hf_folder(folder / name, model, files=2) for name, model in models.items()
    }  # fmt: skip


def need(profile):
    if profile == "native":
        require_native()


def types_of(path):
    """Return the types of embedding and head, and of the layers."""
    found = open_package(path).manifest.quantisation
    return (
        {found["embedding"], found["head"]},
        {name for group in ("attention", "feed_forward") for name in found[group].split("+")},
    )


OPTIONS = ([("gguf", "narrow"), ("folder", "wide")], EXPECTED, ["native", "portable"])


@pytest.mark.parametrize(("source", "weights", "profile"), with_slow(product(*OPTIONS), all_pairs(*OPTIONS)))
def test_every_option(sources, tmp_path, source, weights, profile):
    need(profile)
    kind, widths = source
    # Nothing but int4 is chosen by what a text shows.
    calibration = "built-in" if (widths, weights) == ("wide", "int4") else None
    report = export_model(
        sources[kind, widths], tmp_path / "p", profile=profile, weights=weights, calibration=calibration
    )  # fmt: skip
    assert types_of(tmp_path / "p") == expected_types(weights, widths, profile)
    if profile == "native":
        assert report.check[-1].steps.largest < 1.1
    with load_package(tmp_path / "p") as model:
        assert len(model.generate("Hello", max_tokens=4, **GREEDY).token_ids) == 4


@pytest.mark.parametrize(("kind", "expected"), [("folder", "int4"), ("gguf", "keep")])
def test_without_an_option_folders_of_floats_are_quantised(sources, tmp_path, kind, expected):
    export_model(sources[kind, "narrow"], tmp_path / "p", profile="portable", calibration=None)
    assert types_of(tmp_path / "p") == expected_types(expected, "narrow", "portable")


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_the_same_export_twice_is_the_same_package(sources, tmp_path, profile):
    need(profile)
    found = [
        export_model(sources["folder", "wide"], tmp_path / str(number), profile=profile).package_id
        for number in range(2)
    ]
    assert found[0] == found[1]


def test_calibration_changes_the_codes(sources, tmp_path):
    found = {
        calibration: export_model(
            sources["folder", "wide"], tmp_path / str(calibration), profile="portable", calibration=calibration
        ).package_id
        for calibration in ("built-in", None)
    }
    assert found["built-in"] != found[None]
    (tmp_path / "text.txt").write_text("The boat left the harbour, and nobody knew where it went. " * 60)
    own = export_model(
        sources["folder", "wide"], tmp_path / "own", profile="portable", calibration=tmp_path / "text.txt"
    ).package_id  # fmt: skip
    assert own not in found.values()


def weights_size(path):
    return (path / "weights.bin").stat().st_size


@pytest.mark.parametrize(
    ("widths", "calibration", "shares"), [("wide", "built-in", (0.5,)), ("narrow", None, (0.3, 0.7))]
)
def test_a_size_is_kept_and_used(sources, tmp_path, widths, calibration, shares):
    require_native()
    source = sources["folder", widths]
    for name in ("int4", "int8"):
        export_model(source, tmp_path / name, profile="native", weights=name, calibration=calibration)
    small, large = (weights_size(tmp_path / name) for name in ("int4", "int8"))
    for share in shares:
        size, out = int(small + share * (large - small)), tmp_path / str(share)
        export_model(source, out, profile="native", size=size, calibration=calibration)
        assert 0.85 * size < weights_size(out) <= size
        assert len(types_of(out)[1]) > 1
    with load_package(out) as model:
        assert len(model.generate("Hello", max_tokens=4, **GREEDY).token_ids) == 4


def test_a_size_that_is_too_small(sources, tmp_path):
    require_native()
    with pytest.raises(ConfigError, match="does not fit the size"):
        export_model(sources["folder", "narrow"], tmp_path / "p", profile="native", size=20_000)
    assert listing(tmp_path) == []


def test_a_size_needs_the_native_profile(sources, tmp_path):
    with pytest.raises(ConfigError, match="A size needs the native op profile"):
        export_model(sources["gguf", "narrow"], tmp_path / "p", profile="portable", size=1 << 20)


def test_a_size_and_a_type(sources, tmp_path):
    require_native()
    with pytest.raises(ConfigError, match="do not go together"):
        export_model(sources["gguf", "narrow"], tmp_path / "p", profile="native", size=1 << 20, weights="int4")


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("profile", ["native", "portable"])
def test_other_sources_become_4_bits(tmp_path, type_name, profile):
    need(profile)
    source = write_llama_gguf(tmp_path / "m.gguf", weight_type=type_name, embedding_type=type_name, context=512)
    export_model(source.path, tmp_path / "p", profile=profile, weights="int4", calibration=None)
    assert types_of(tmp_path / "p") == expected_types("int4", "narrow", profile)


def test_a_file_of_4_bits_stays_as_it_is(tmp_path):
    source = write_llama_gguf(tmp_path / "m.gguf", weight_type="Q4_K", embedding_type="Q6_K", hidden=256, ffn=512)
    found = set()
    for weights in ("keep", "int4", "int8", "f16", "f32"):
        export_model(source.path, tmp_path / weights, profile="portable", weights=weights, calibration=None)
        found.add((tmp_path / weights / "weights.bin").read_bytes())
    assert len(found) == 1


def test_widths_that_no_block_fits_stay_floats(tmp_path):
    source = write_llama_gguf(
        tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", ffn=80, context=512
    )  # fmt: skip
    export_model(source.path, tmp_path / "p", profile="portable", weights="int4")
    assert types_of(tmp_path / "p")[1] == {"Q4_0", "Q8_0", "F32"}


@pytest.mark.parametrize(
    ("weights", "calibration", "value"), all_pairs(["int4", "int8", "f16"], ["built-in", None], [65536.0, 1e30])
)
def test_a_weight_that_is_too_large(models, tmp_path, weights, calibration, value):
    name = "model.layers.1.mlp.up_proj.weight"
    array = hf_tensors(models["narrow"])[name].copy()
    array[3, 5] = value
    source = write_hf_folder(tmp_path / "m", models["narrow"], tensors={name: array})
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedModel, match=r"'blk\.1\.ffn_up\.weight' does not fit half precision"):
        export_model(source, tmp_path / "out" / "p", profile="portable", weights=weights, calibration=calibration)
    assert listing(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("weights", "calibration", "value"),
    all_pairs(["keep", "int4", "int8", "f16", "f32"], ["built-in", None], [np.nan, np.inf]),
)
def test_a_weight_that_is_not_finite(models, tmp_path, weights, calibration, value):
    name = "model.layers.0.self_attn.q_proj.weight"
    array = hf_tensors(models["narrow"])[name].copy()
    array[3, 5] = value
    source = write_hf_folder(tmp_path / "m", models["narrow"], tensors={name: array}, dtype="F16")
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidModelFile, match=r"q_proj\.weight' holds a value that is not finite"):
        export_model(source, tmp_path / "out" / "p", profile="portable", weights=weights, calibration=calibration)
    assert listing(tmp_path / "out") == []


def test_a_norm_that_makes_activations_overflow(models, tmp_path):
    name = "model.layers.1.post_attention_layernorm.weight"
    source = write_hf_folder(tmp_path / "m", models["narrow"], tensors={name: np.full(64, 1e30, np.float32)})
    with pytest.raises(UnsupportedModel, match="too large for float32"):
        export_model(source, tmp_path / "p", profile="portable", weights="int4")


UNUSUAL = (
    {"context": 8},
    {"context": 2},
    {"layers": 1},
    {"heads": 2, "kv_heads": 1, "head_dim": 16, "tied": False},
    {"extra_metadata": {"llama.attention.sliding_window": 5}},
    {"rope_freqs": True},
)
CHOICES = ({"weights": "int4"}, {"size": 250_000})


@pytest.mark.parametrize(
    ("sizes", "options"), with_slow(product(UNUSUAL, CHOICES), zip(UNUSUAL, cycle(CHOICES))), ids="-".join
)
def test_unusual_models(tmp_path, sizes, options):
    """Little text to measure with, one layer to choose from, and every kind of attention."""
    require_native()
    source = write_llama_gguf(
        tmp_path / "m.gguf", weight_type="F16", embedding_type="F16", output_type="F16", **{"context": 512, **sizes}
    )
    report = export_model(source.path, tmp_path / "p", profile="native", **options)
    assert report.check[-1].steps.largest < 1.1
    assert types_of(tmp_path / "p")[1] & {"IQ4_NL", "Q5_0", "Q5_1", "Q8_0"}


@pytest.mark.parametrize(("kind", "widths"), [("gguf", "narrow"), ("folder", "wide")])
def test_nested_weights(sources, tmp_path, kind, widths):
    require_native()
    report = export_model(sources[kind, widths], tmp_path / "p", profile="native", weights="nested8")
    manifest = open_package(tmp_path / "p").manifest
    assert types_of(tmp_path / "p") == ({"W8N"}, {"W8N"})
    assert manifest.draft_graph == "draft.onnx"
    assert "draft.onnx" in manifest.files
    for found in report.weights.classes.values():
        assert found.bits == pytest.approx(9, abs=0.6)
        assert 0 < 20 * found.error < found.upper_error < 0.05
    assert report.check[-1].steps.largest < 1.1


def test_layers_of_few_bits_have_nothing_to_nest(tmp_path):
    require_native()
    write_llama_gguf(tmp_path / "m.gguf", weight_type="Q4_0", embedding_type="Q8_0", context=512)
    with pytest.raises(ConfigError, match="no weights that nested codes are fewer bits for"):
        export_model(tmp_path / "m.gguf", tmp_path / "p", profile="native", weights="nested8", calibration=None)
    assert not (tmp_path / "p").exists()


def test_other_packages_say_nothing_of_nested_weights(sources, tmp_path):
    export_model(sources["gguf", "narrow"], tmp_path / "p", profile="portable", weights="int8", calibration=None)
    manifest = open_package(tmp_path / "p").manifest
    assert manifest.draft_graph is None
    assert {found.upper_error for found in manifest.weights.classes.values()} == {None}


def test_portable_packages_have_no_nested_weights(sources, tmp_path):
    with pytest.raises(ConfigError, match="no nested codes"):
        export_model(sources["gguf", "narrow"], tmp_path / "p", profile="portable", weights="nested8")
    assert listing(tmp_path) == []
