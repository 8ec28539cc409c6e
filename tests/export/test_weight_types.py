"""Whole models whose matrices have each type that GGUF files have, in both op profiles."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from tests.helpers.ggml_blocks import BLOCK_TYPES, wide
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native

TYPES = (*BLOCK_TYPES, "BF16")
SIZES = {"layers": 3, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 512}
Q4_K_M = {"attn_v": "Q6_K", "ffn_down": "Q6_K"}
"""What llama.cpp makes finer in half of the layers of a Q4_K_M file."""


def mixed(name):
    """Return the type of a tensor in a file like a Q4_K_M."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    return Q4_K_M.get(kind) if name.startswith(("blk.0", "blk.2")) else None


def exported(path, profile, **options):
    source = write_llama_gguf(path / "model.gguf", **{**SIZES, **options})
    return export_model(source.path, path / "package", profile=profile, calibration=None), source


@pytest.mark.parametrize("profile", ["native", "portable"])
@pytest.mark.parametrize("type_name", TYPES)
def test_an_export_of_every_type_passes_its_check(type_name, profile, tmp_path):
    """The check compares the graph with a forward of the file's own values; the native one step by step."""
    if profile == "native":
        require_native()
    result, _ = exported(tmp_path, profile, weight_type=type_name, embedding_type=type_name, layers=1)
    manifest = open_package(tmp_path / "package").manifest
    assert set(manifest.quantisation.values()) == {type_name}
    if profile == "native":
        assert result.check[-1].steps.largest < 1.1


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_a_file_of_several_types(profile, tmp_path):
    if profile == "native":
        require_native()
    exported(tmp_path, profile, weight_type="Q4_K", embedding_type="Q6_K", types=mixed)
    manifest = open_package(tmp_path / "package").manifest
    assert manifest.quantisation == {
        "embedding": "Q6_K", "attention": "Q4_K+Q6_K", "feed_forward": "Q4_K+Q6_K", "head": "Q6_K",
    }  # fmt: skip


def test_rows_of_mixed_layers_have_the_same_bits_however_many_come_together(tmp_path):
    """Layers that are one operator, and the last one, which is several; queries, keys and values of three types."""
    require_native()
    types = {"attn_q": "Q4_K", "attn_k": "Q2_K", "attn_v": "Q6_K", "ffn_gate": "Q5_K", "ffn_up": "IQ4_XS"}
    exported(
        tmp_path, "native", weight_type="Q3_K", embedding_type="Q5_K",
        types=lambda name: types.get(name.removesuffix(".weight").rpartition(".")[2]),
    )  # fmt: skip
    graph = json.dumps(operators(tmp_path / "package" / "model.onnx"))
    assert graph.count("DecoderLayer") == 2
    with load_package(tmp_path / "package", kv="f32") as model, model.passes() as (runner, _):
        token_ids = [(7 * i) % 419 for i in range(40)]
        whole = runner.forward(token_ids, 0, 40).logits.copy()
        for size in (1, 3, 8, 17):
            parts = [
                runner.forward(token_ids[at : at + size], at, min(size, 40 - at)).logits.copy()
                for at in range(0, 40, size)
            ]
            np.testing.assert_array_equal(np.concatenate(parts).view(np.uint32), whole.view(np.uint32))


def operators(path):
    import onnx_ir as ir

    return [node.op_type for node in ir.load(path).graph]


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K"])
def test_speculative_answers_are_the_plain_ones(type_name, tmp_path):
    require_native()
    exported(tmp_path, "native", weight_type=type_name, embedding_type="Q6_K")
    prompt = "the sea the sea the sea the sea"
    answers = []
    for spec in ("off", "suffix"):
        with load_package(tmp_path / "package", spec=spec) as model:
            answers.append(model.generate(prompt, max_tokens=60, temperature=0.0).token_ids)
    assert answers[0] == answers[1]


def test_rows_that_are_no_multiple_of_a_block(tmp_path):
    """llama.cpp writes other types for them, so such a file was damaged."""
    assert wide("Q4_K", 64) == 256
