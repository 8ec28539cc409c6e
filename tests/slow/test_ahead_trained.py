"""A block that predicts ahead, trained on a tiny model: its guesses are mostly right, so it is put together rightly."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export import export_model
from edge_rt.runtime.decode.draft import Accepted
from tests.helpers.ahead_models import BLOCK, CASE, OpenedPair
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.hf_factory import write_safetensors
from tests.helpers.native_profile import require_native

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

TOKENS, FIRST = 12, 40
"""A token follows from the two before it: of so many, whose ids begin there."""
STEPS, ROWS, BATCH = 300, 24, 32


def texts(count, rng, table):
    found = np.zeros((count, ROWS), np.int64)
    found[:, :2] = rng.integers(0, TOKENS, (count, 2))
    for at in range(2, ROWS):
        found[:, at] = table[found[:, at - 2], found[:, at - 1]]
    return torch.from_numpy(found + FIRST)


class Block(torch.nn.Module):
    """The block as ``edge_rt.package.ahead`` describes it, over transformers' layer."""

    def __init__(self, config):
        super().__init__()
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

        self.norms = torch.nn.ModuleDict(
            {
                name: Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
                for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
            }
        )
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = Qwen3_5DecoderLayer(config, 0)

    def forward(self, embedded, states, rotations):
        both = torch.cat([self.norms["pre_fc_norm_embedding"](embedded), self.norms["pre_fc_norm_hidden"](states)], -1)
        rows = both.shape[1]
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        found = self.layer(self.fc(both), position_embeddings=rotations, attention_mask=mask)
        return self.norms["norm"](found[0] if isinstance(found, tuple) else found)


def loss_of(logits, wanted):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    require_native()
    path, case = tmp_path_factory.mktemp("trained"), load_case(CASE)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    table = rng.integers(0, TOKENS, (TOKENS, TOKENS))
    config = transformers.Qwen3_5TextConfig(**{**case.config, "attn_implementation": "eager"})
    model = transformers.Qwen3_5ForCausalLM(config).float()
    block = Block(config).float()
    optimiser = torch.optim.AdamW([*model.parameters(), *block.parameters()], 2e-3)
    for _ in range(STEPS):
        tokens = texts(BATCH, rng, table)
        states = model.model(tokens).last_hidden_state
        logits = model.lm_head(states)
        rotations = model.model.rotary_emb(states, torch.arange(ROWS - 1)[None])
        embedded = model.model.embed_tokens(tokens[:, 1:]).detach()
        first = block(embedded, states[:, :-1].detach(), rotations)
        # A second step takes what the first one gave in the place of the model's state.
        second = block(embedded[:, 1:], first[:, :-1], tuple(part[:, :-1] for part in rotations))
        head = torch.nn.functional.linear
        weight = model.lm_head.weight.detach()
        loss = loss_of(logits[:, 1:-1], tokens[:, 2:]) + loss_of(head(first[:, :-1], weight), tokens[:, 2:])
        loss = loss + 0.5 * loss_of(head(second[:, :-1], weight), tokens[:, 3:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    folder = write_folder(path / "folder", case)
    tensors = {name: values.detach().numpy() for name, values in model.state_dict().items() if name in case.shapes}
    assert tensors.keys() == case.shapes.keys()
    of_block = {f"mtp.{name.removeprefix('norms.')}": values for name, values in block.state_dict().items()}
    of_block = {name.replace("mtp.layer.", BLOCK): values.detach().numpy() for name, values in of_block.items()}
    write_safetensors(folder / "model.safetensors", {**tensors, **of_block})
    export_model(folder, path / "package", profile="native", weights="f32", calibration=None)
    return path / "package", table


def test_more_than_half_of_the_guesses_are_right(package):
    """Of first guesses, and of second ones behind right first ones, along texts that were not trained on."""
    path, table = package
    rng, rights, asked = np.random.default_rng(5), [0, 0], [0, 0]
    for text in texts(4, rng, table).tolist():
        opened = OpenedPair(path)
        opened.ahead.begin(text[:1])
        for place in range(len(text) - 3):
            outputs = opened.runner.forward([text[place]], place, 1)
            opened.ahead.observe(Accepted((text[place + 1],), (), 0), outputs)
            opened.ahead.extend([text[place + 1]])
            # A text begins with two tokens that follow from nothing.
            if place < 2:
                continue
            drafted = []
            for step in range(2):
                guess = int(opened.ahead.follow(drafted).ids[0, 0])
                asked[step] += 1
                if guess != text[place + 2 + step]:
                    break
                rights[step] += 1
                drafted.append(guess)
    print(f"right: {rights} of {asked}")
    assert rights[0] > asked[0] / 2
    assert rights[1] > asked[1] / 2
