"""Every family against the logits of transformers, on small random models: read, described, computed in every way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.registry import ARCHITECTURES, MODEL_TYPES
from edge_rt.export.opening import open_checkpoint
from tests.helpers.family_cases import CASES, load_case, write_folder, write_gguf
from tests.helpers.graphs import Built
from tests.helpers.native_profile import require_native
from tests.helpers.portable_profile import require_portable_windows

TOLERANCE = 1e-4
"""Largest accepted difference from transformers, over the largest logit."""
LOADED = {name: load_case(name) for name in CASES}
REFUSED = {
    "cohere2": r"'cohere2' is not supported\. Its layers are parallel blocks",
    "stablelm_parallel": r"use_parallel_residual \(.* side by side\), qk_layernorm \(.* each head\)",
}
"""Cases that no description can state -> what the error names."""
FOLDERS = [
    name for name, case in LOADED.items() if case.text_config["model_type"] in MODEL_TYPES and name not in REFUSED
]
FILES = [name for name in FOLDERS if LOADED[name].gguf is None]


def error(found, expected):
    """Return the largest difference, over the largest logit."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def require_windows(built):
    """Skip a portable graph with windows where ONNX Runtime is too old for it."""
    if any(built.decoder.layer_windows):
        require_portable_windows()


@pytest.fixture(params=FOLDERS)
def case(request):
    return LOADED[request.param]


class TestFolders:
    def test_older_configurations_say_the_same(self, case, tmp_path):
        new, old, short = (
            open_checkpoint(write_folder(tmp_path / name, case, **options))[1]
            for name, options in (("new", {}), ("old", {"old_keys": True}), ("short", {"drop_defaults": True}))
        )
        assert dataclasses.replace(old, name=new.name) == new
        assert dataclasses.replace(short, name=new.name) == new

    def test_the_reference_and_the_portable_graph(self, case, tmp_path):
        built = Built(write_folder(tmp_path / "folder", case), tmp_path)
        assert error(built.reference(case.tokens), case.logits) < TOLERANCE
        require_windows(built)
        assert error(built.run(case.tokens), case.logits) < TOLERANCE

    def test_the_native_graph(self, case, tmp_path):
        require_native()
        built = Built(write_folder(tmp_path / "folder", case), tmp_path, "int8", profile="native")
        assert error(built.run(case.tokens), case.logits) < TOLERANCE


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    case = LOADED[name]
    write_gguf(tmp_path / "m.gguf", case)
    built = Built(tmp_path / "m.gguf", tmp_path)
    require_windows(built)
    assert error(built.run(case.tokens), case.logits) < TOLERANCE


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
    assert {case.text_config["model_type"] for case in LOADED.values()} >= set(MODEL_TYPES)
    assert len(ARCHITECTURES) <= len(MODEL_TYPES)
