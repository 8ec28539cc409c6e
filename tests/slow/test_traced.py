"""Exports through transformers' own exporter, of small random models, against transformers' answers."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxscript", reason="the extra 'transformers' is not installed")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from edge_rt.errors import UnsupportedModel
from edge_rt.export import export_model
from edge_rt.runtime.config import GenerationConfig
from tests.helpers.models import load_package
from tests.slow.traced_models import greedy, make_folder

pytestmark = pytest.mark.slow

PROMPT = [(5 + 37 * i) % 300 + 1 for i in range(11)]
TOKENS = 64


@pytest.mark.parametrize("family", ["gpt_neox", "opt"])
def test_greedy_tokens_are_those_of_transformers(family, tmp_path):
    folder = make_folder(family, tmp_path / family)
    report = export_model(folder, tmp_path / "package", via="transformers")
    assert report.check[0].relative_error < 1e-5
    with load_package(tmp_path / "package") as model:
        found = model.generate(PROMPT, GenerationConfig(max_tokens=TOKENS, temperature=0.0)).token_ids
    expected = greedy(folder, PROMPT, TOKENS)
    # Random weights may choose the token that ends an answer.
    length = expected.index(0) if 0 in expected else TOKENS
    assert list(found)[:length] == expected[:length]
    assert length == TOKENS


def test_a_state_other_than_keys_and_values_is_refused(tmp_path):
    folder = make_folder("mamba", tmp_path / "mamba")
    with pytest.raises(UnsupportedModel, match="keeps a state other than keys and values"):
        export_model(folder, tmp_path / "package", via="transformers")
    assert not (tmp_path / "package").exists()
