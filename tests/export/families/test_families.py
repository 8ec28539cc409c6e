"""Every family against the logits of transformers, on small random models: read, described, computed in every way."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.registry import ARCHITECTURES, MODEL_TYPES
from edge_rt.export.opening import check_operators, open_checkpoint
from edge_rt.export.sources.model_file import TensorReader
from tests.helpers.family_cases import CASES, load_case, write_config, write_folder, write_gguf
from tests.helpers.graphs import Built, reference_of
from tests.helpers.native_profile import require_native
from tests.helpers.portable_profile import require_portable_windows

TOLERANCE = 1e-4
"""Largest accepted difference from transformers, over the largest logit."""
REFERENCE_TOLERANCE = 5e-5
"""The same for the reference in float64, which transformers' float32 is compared with."""
LOADED = {name: load_case(name) for name in CASES}
REFUSED = {
    "cohere2": r"'cohere2' is not supported\. Its layers are parallel blocks",
    "stablelm_parallel": r"use_parallel_residual \(.* side by side\), qk_layernorm \(.* each head\)",
}
"""Cases that no description can state -> what the error names."""
NATIVE_ONLY = {
    **dict.fromkeys(("lfm2", "lfm2_bias"), "short convolutions"),
    **dict.fromkeys(("lfm2_moe", "lfm2_moe_other"), "(short convolutions|experts)"),
    **dict.fromkeys(("granite_h", "granite_h_dense"), "layers with a state"),
    **dict.fromkeys(("falcon_h1", "falcon_h1_norm", "falcon_h1_before"), "layers with a state"),
    **dict.fromkeys(("nemotron_h", "nemotron_h_dense", "nemotron_h_latent"), "layers with a state"),
    **dict.fromkeys(("qwen3_moe", "qwen3_moe_mixed", "olmoe", "granitemoe", "gpt_oss", "gpt_oss_plain"), "experts"),
    "granite_h_attention": "experts",
    **dict.fromkeys(
        ("gemma4_text", "gemma4_text_keys", "gemma4_text_experts"), "heads that differ, or keys of another layer"
    ),
    "olmoe_clip": "limits of queries, keys and values",
    "qwen3_5_attention": "gates of attention",
    **dict.fromkeys(("qwen3_5", "qwen3_5_epsilon", "qwen3_5_moe", "qwen3_next"), "layers with a state"),
}
"""Cases that no portable graph computes -> what the error names."""
DESCRIBED = [
    name for name, case in LOADED.items() if case.text_config["model_type"] in MODEL_TYPES and name not in REFUSED
]
FOLDERS = [name for name in DESCRIBED if name not in NATIVE_ONLY]
FILES = [name for name in DESCRIBED if LOADED[name].gguf is None]


def error(found, expected):
    """Return the largest difference, over the largest logit."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def require_windows(built):
    """Skip a portable graph with windows where ONNX Runtime is too old for it."""
    if any(built.decoder.layer_windows):
        require_portable_windows()


def reference_logits(path, token_ids):
    """Return the reference's logits of a checkpoint in float64."""
    source, decoder = open_checkpoint(path)
    with TensorReader(source.paths) as stream:
        return reference_of(stream, source, decoder, dtype="float64").logits(token_ids)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function of a case's name: its folder, which nobody may change."""
    root = tmp_path_factory.mktemp("folders")
    return functools.cache(lambda name: write_folder(root / name, LOADED[name]))


@pytest.fixture(params=FOLDERS)
def case(request):
    return LOADED[request.param]


@pytest.fixture(params=DESCRIBED)
def described(request):
    return LOADED[request.param]


class TestFolders:
    def test_older_configurations_say_the_same(self, described, folders, tmp_path):
        new = open_checkpoint(folders(described.name))[1]
        path = Path(shutil.copytree(folders(described.name), tmp_path / "folder", copy_function=os.link))
        (path / "config.json").unlink()
        for options in ({"old_keys": True}, {"drop_defaults": True}):
            write_config(path, described, **options)
            assert dataclasses.replace(open_checkpoint(path)[1], name=new.name) == new

    def test_the_reference(self, described, folders):
        found = reference_logits(folders(described.name), described.tokens)
        assert error(found, described.logits) < REFERENCE_TOLERANCE

    def test_the_portable_graph(self, case, folders, tmp_path):
        built = Built(folders(case.name), tmp_path)
        require_windows(built)
        assert error(built.run(case.tokens), case.logits) < TOLERANCE

    @pytest.mark.parametrize("name", DESCRIBED)
    def test_the_native_graph(self, name, folders, tmp_path):
        require_native()
        case = LOADED[name]
        built = Built(folders(name), tmp_path, "int8", profile="native")
        assert error(built.run(case.tokens), case.logits) < TOLERANCE


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    case = LOADED[name]
    write_gguf(tmp_path / "m.gguf", case)
    if name in NATIVE_ONLY:
        require_native()
        built = Built(tmp_path / "m.gguf", tmp_path, "int8", profile="native")
    else:
        built = Built(tmp_path / "m.gguf", tmp_path)
        require_windows(built)
    assert error(built.run(case.tokens), case.logits) < TOLERANCE


@pytest.mark.parametrize("name", NATIVE_ONLY)
def test_what_no_portable_operator_computes_is_named(name, folders, tmp_path):
    with pytest.raises(UnsupportedModel, match=f"It is {NATIVE_ONLY[name]}, in the architecture"):
        Built(folders(name), tmp_path, profile="portable")


def test_what_no_operator_computes_is_named(tmp_path):
    """Before the weights are fetched, by the description alone."""
    decoder = open_checkpoint(write_folder(tmp_path / "folder", LOADED["llama_bias"]))[1]
    check_operators(decoder)
    (layer,) = decoder.kinds
    limited = dataclasses.replace(layer, feed_forward=dataclasses.replace(layer.feed_forward, limit=7.0))
    with pytest.raises(UnsupportedModel, match="It is limits of feed-forwards, in the architecture llama"):
        check_operators(dataclasses.replace(decoder, kinds=(limited,)))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", ["folder", "older keys", "without defaults", "file"])
def test_what_is_refused_is_named(name, kind, tmp_path):
    case, path = LOADED[name], tmp_path / "m.gguf"
    if kind == "file":
        write_gguf(path, case)
    else:
        write_folder(path, case, old_keys=kind == "older keys", drop_defaults=kind == "without defaults")
    with pytest.raises(UnsupportedModel, match=REFUSED[name]):
        open_checkpoint(path)


def test_all_families_have_a_case():
    # What has a type of its own, and is read as another one: see test_gemma4.py.
    alike = {"gemma4_unified_text"}
    assert {case.text_config["model_type"] for case in LOADED.values()} >= set(MODEL_TYPES) - alike
    assert len(ARCHITECTURES) <= len(MODEL_TYPES)
