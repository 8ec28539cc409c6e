"""A block that predicts ahead, trained beside a tiny model: its guesses are mostly right, and wrong wiring is seen."""

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

TOKENS, FIRST = 8, 40
"""A token follows from the two before it: of so many, whose ids begin there."""
STEPS, ROWS, BATCH = 140, 16, 16
SETTINGS = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}


def rule(rng):
    """Return which token follows two, ``[first, second]``; every pair is that before one pair, so that texts go on."""
    return np.stack([rng.permutation(TOKENS) for _ in range(TOKENS)], axis=1)


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


def trained(table, config, rng):
    """Return a model of texts by the rule, and a block that was trained beside it."""
    model = transformers.Qwen3_5ForCausalLM(config).float()
    block = Block(config).float()
    optimiser = torch.optim.AdamW([*model.parameters(), *block.parameters()], 4e-3)
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
    return model, block


@pytest.fixture(scope="module")
def made():
    """The case, its tensors by name, and the rule."""
    require_native()
    case = load_case(CASE)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    table = rule(rng)
    config = transformers.Qwen3_5TextConfig(**{**case.config, **SETTINGS, "attn_implementation": "eager"})
    threads = torch.get_num_threads()
    # Products are so small that threads would wait for each other.
    torch.set_num_threads(1)
    try:
        model, block = trained(table, config, rng)
    finally:
        torch.set_num_threads(threads)
    tensors = {name: values for name, values in model.state_dict().items() if name in case.shapes}
    of_block = {f"mtp.{name.removeprefix('norms.')}": values for name, values in block.state_dict().items()}
    tensors |= {name.replace("mtp.layer.", BLOCK): values for name, values in of_block.items()}
    return case, {name: values.detach().numpy() for name, values in tensors.items()}, table


def exported(path, case, tensors):
    folder = write_folder(path / "folder", case, config=SETTINGS)
    write_safetensors(folder / "model.safetensors", tensors)
    export_model(folder, path / "package", profile="native", weights="f32", calibration=None)
    return path / "package"


def shares(path, table, late=0):
    """Return which share is right of first guesses, and of second ones behind right first ones, along texts.

    States have with them the tokens behind them, or those that stand so many places before these.
    """
    rng, rights, asked = np.random.default_rng(5), np.zeros(2), np.zeros(2)
    opened = OpenedPair(path)
    for text in texts(4, rng, table).tolist():
        opened.ahead.begin(text[:1])
        for place in range(len(text) - 3):
            outputs = opened.runner.forward([text[place]], place, 1)
            opened.ahead.observe(Accepted((text[place + 1 - late],), (), 0), outputs)
            opened.ahead.extend([text[place + 1]])
            drafted = []
            # A text begins with two tokens that follow from nothing.
            for step in range(2 if place >= 2 else 0):
                guess = int(opened.ahead.follow(drafted).ids[0, 0])
                asked[step] += 1
                if guess != text[place + 2 + step]:
                    break
                rights[step] += 1
                drafted.append(guess)
    print(f"right: {rights} of {asked}")
    return rights / np.maximum(asked, 1)


def test_more_than_half_of_the_guesses_are_right(made, tmp_path):
    case, tensors, table = made
    path = exported(tmp_path, case, tensors)
    assert min(shares(path, table)) > 0.5
    # That the test sees it when things are put together wrongly.
    assert shares(path, table, late=1)[0] < 0.5


def swapped(name, values):
    """Return the first matrix with the halves of states and embeddings exchanged."""
    return np.concatenate(np.split(values, 2, axis=1)[::-1], axis=1) if name == "mtp.fc.weight" else values


def without_offset(name, values):
    """Return norms that are multiplied by what is stored, without 1 added."""
    return values - 1 if name.startswith("mtp.") and "norm" in name else values


@pytest.mark.parametrize("change", [swapped, without_offset])
def test_blocks_that_are_put_together_wrongly_are_seen(made, tmp_path, change):
    case, tensors, table = made
    path = exported(tmp_path, case, {name: change(name, values) for name, values in tensors.items()})
    assert shares(path, table)[0] < 0.5
