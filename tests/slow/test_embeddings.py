"""Embeddings against transformers: its last hidden states, pooled as the checkpoint says."""

from __future__ import annotations

import numpy as np
import pytest

import edge_rt
from edge_rt.export import export_model
from tests.helpers.embedding_folder import write_embedding_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TEXTS = ("The little boat left the harbour at dawn.", "x", "Count from one to ten: 1, 2, 3, 4, 5. " * 6)


@pytest.mark.parametrize(
    ("case", "mode"),
    [("qwen3", "lasttoken"), ("qwen3", "mean_tokens"), ("gemma3_text", "mean_tokens"), ("llama", "lasttoken"),
     ("stablelm", "mean_tokens")],
)  # fmt: skip
def test_embeddings_point_where_those_of_transformers_do(tmp_path, case, mode):
    folder = write_embedding_folder(tmp_path / "m", case, mode=mode, adds_end=mode == "lasttoken")
    export_model(folder, tmp_path / "p", weights="f32", accept_loss=True, profile="native")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    reference = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with edge_rt.load(tmp_path / "p", slots=3, ctx=256) as model:
        found = model.embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            states = reference(input_ids=tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state[0].numpy()
        expected = states[-1] if mode == "lasttoken" else states.mean(0)
        assert float(vector @ expected) / np.linalg.norm(expected) > 0.9999
