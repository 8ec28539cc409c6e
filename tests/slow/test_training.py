"""A head and adapters of exits, trained for tiny models: they learn, a seed repeats it, a stopped run goes on."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import edge_rt
from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.ort.session import pool_size
from edge_rt.package.drafter_reader import open_drafter
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.outputs import TopTokens
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.head_runner import DrafterJob, open_head
from edge_rt.system.machine import usable_cpus
from edge_rt.train import checkpoint
from edge_rt.train.answers import read_shard, shard_paths, write_answers
from edge_rt.train.batch import BatchRunner
from edge_rt.train.batches import Recorded, anchors_of, count_tokens, held_out, split
from edge_rt.train.checkpoint import State
from edge_rt.train.dialogues.writer import DialogueWriter, find_markers
from edge_rt.train.head import DraftHead, HeadNetShape, codes_of, rounded
from edge_rt.train.learn import TrainingRecipe, acceptance
from edge_rt.train.options import TrainOptions
from edge_rt.train.run import train_drafter
from edge_rt.train.target import read_target
from edge_rt.train.training import train_head
from tests.helpers.segmented import CutPasses
from tests.helpers.tiny_adapters import load_adapters

pytestmark = pytest.mark.slow

THREADS = pool_size() or usable_cpus()
OPTIONS = TrainOptions(tokens=20_000, updates=60, vocabulary=128, threads=THREADS, intermediate_size=64)
FREE_ROWS = RowCosts((1, 64), (0,), ((1.0, 1.001),))
RECIPE = TrainingRecipe(batch=256, warm_up=10)


@pytest.fixture(scope="module")
def package(native_package):
    return open_package(native_package)


@pytest.fixture(scope="module")
def answers(package, tmp_path_factory):
    """A folder with one file of answers; nobody may change it."""
    folder = tmp_path_factory.mktemp("answers")
    write_answers(package, folder, OPTIONS)
    return folder


@pytest.fixture
def work(answers, tmp_path):
    return Path(shutil.copytree(answers, tmp_path / "work"))


def train(package, work, out, **changes):
    return train_drafter(package, out, work, replace(OPTIONS, **changes), recipe=RECIPE)


def digest(drafter):
    return hashlib.sha256(drafter.weights.read_bytes()).hexdigest()


def test_it_learns_and_says_what_it_learned_from(package, work, tmp_path):
    report = train(package, work, tmp_path / "head")
    trained, drafter = report.trained, report.drafter
    assert drafter is not None
    assert trained.reached.first[0] > trained.untrained.first[0]
    assert drafter.info.acceptance.positions[0] == pytest.approx(trained.reached.first[0], abs=1e-4)
    sizes = (package.manifest.model.hidden_size, package.manifest.model.vocab_size)
    (path,) = shard_paths(work)
    shard = read_shard(path, *sizes)
    learned = split(shard, is_held_out=False).num_tokens
    assert (
        drafter.info.training.tokens == learned == int(count_tokens([path], Recorded(*sizes)).sum()) < shard.num_tokens
    )
    assert drafter.info.training.steps == OPTIONS.updates
    drafter.verify()
    # A finished training leaves no checkpoint: the next one begins anew.
    assert not checkpoint.file_of(work).exists()


def test_what_is_measured_is_what_the_operator_guesses(package, work, tmp_path):
    report = train(package, work, tmp_path / "head")
    config = package.manifest.model
    anchors = held_out(shard_paths(work), Recorded(config.hidden_size, config.vocab_size))
    runner = open_head(DrafterJob(package, report.drafter, 4, 0, THREADS, None))()._runner
    places = anchors.places[:200]
    right = 0
    for row in places.tolist():
        runner.state[:] = anchors.hidden[row].float().numpy()
        guess = runner.grow(runner.state, int(anchors.next_ids[row]), 1, 1, 1)
        right += int(guess.ids[0] == anchors.next_ids[row + 1])
    net, target = report.trained.net, report.trained.target
    few = replace(anchors, places=places)
    measured = acceptance(net, target, few).first[0] * len(places)
    # The operator rounds activations to 8 bits, so single guesses may differ.
    assert abs(right - measured) <= 4


def test_a_seed_repeats_it(package, work, tmp_path):
    first = train(package, work, tmp_path / "first")
    second = train(package, work, tmp_path / "second")
    other = train(package, work, tmp_path / "other", seed=1)
    assert digest(first.drafter) == digest(second.drafter) != digest(other.drafter)


def test_dropout_is_for_learning_only(package, work, tmp_path):
    report = train_drafter(package, tmp_path / "head", work, OPTIONS, recipe=replace(RECIPE, dropout=0.2))
    assert report.drafter is not None
    trained = report.trained
    config = package.manifest.model
    anchors = held_out(shard_paths(work), Recorded(config.hidden_size, config.vocab_size))
    assert acceptance(trained.net, trained.target, anchors) == acceptance(trained.net, trained.target, anchors)
    without = train_head(package, work, OPTIONS, RECIPE)
    assert not torch.equal(without.net.fc, trained.net.fc)


def test_a_stopped_run_goes_on_with_its_training(package, work, tmp_path):
    def stop(event):
        if event.stage == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # Reports come every 20 seconds, so an endless training meets the first one.
        train_head(package, work, replace(OPTIONS, updates=10**6), RECIPE, stop)
    file = checkpoint.file_of(work)
    config = package.manifest.model
    net = DraftHead(HeadNetShape(config.hidden_size, 64), torch.ones(config.hidden_size))
    state = checkpoint.load(file, net, OPTIONS.seed, package.manifest.model.vocab_size)
    assert state.updates > 0
    files = len(shard_paths(work))
    report = train(package, work, tmp_path / "head", tokens=10**9, updates=state.updates + 5)
    assert report.trained.updates == state.updates + 5
    assert len(shard_paths(work)) == files  # no more answers before the training is over
    assert report.drafter is not None
    assert report.trained.reached.first[0] > report.trained.untrained.first[0]


def test_damaged_or_foreign_checkpoints_are_refused_and_stay(package, work, tmp_path):
    config = package.manifest.model
    net = DraftHead(HeadNetShape(config.hidden_size, 64), torch.ones(config.hidden_size))
    file = checkpoint.file_of(work)
    kept = np.arange(16)
    checkpoint.save(file, net, State(3, 1.0, kept, 0))
    good = file.read_bytes()
    assert checkpoint.load(file, net, 0, config.vocab_size).updates == 3
    with pytest.raises(StorageError, match="seed"):
        checkpoint.load(file, net, 1, config.vocab_size)
    with pytest.raises(StorageError, match="vocabulary"):
        checkpoint.load(file, net, 0, 10)
    with pytest.raises(StorageError, match="a vocabulary of 16, now it is 32"):
        checkpoint.load(file, net, 0, config.vocab_size, 32)
    with pytest.raises(StorageError, match="shape"):
        checkpoint.load(file, DraftHead(HeadNetShape(config.hidden_size, 128), torch.ones(config.hidden_size)), 0, 999)
    for damaged in (b"", good[:100], good[:-40], bytes(len(good))):
        file.write_bytes(damaged)
        with pytest.raises(StorageError, match="cannot be continued"):
            train(package, work, tmp_path / "head")
        assert file.read_bytes() == damaged
    assert not (tmp_path / "head").exists()


def test_prompts_of_a_file(package, tmp_path):
    prompts = ("Hello there", "Why?", "x " * 3000)
    report = train_drafter(
        package,
        tmp_path / "head",
        tmp_path / "work",
        replace(OPTIONS, prompts=prompts),
        recipe=RECIPE,
    )
    assert report.left_out == 1
    with pytest.raises(InputError, match="short enough"):
        train(package, tmp_path / "none", tmp_path / "head", prompts=prompts[2:])


def test_rounding_is_what_the_file_stores():
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    codes, scale, least = codes_of(weight)
    assert torch.equal(codes, codes.round())
    assert float(codes.min()) >= 0
    assert float(codes.max()) == 15
    assert torch.equal(scale, scale.half().float())
    assert torch.equal(least, least.half().float())
    assert float((rounded(weight) - weight).abs().max()) <= float(scale.max()) * 0.51 + 1e-3
    assert torch.equal(rounded(torch.zeros(16, 32)), torch.zeros(16, 32))


def test_the_target_has_the_logits_of_the_model(package):
    """Rows of the LM head, norm and scale give the tokens that the model itself chose greedily."""
    texts = PromptEncoder(package, 512)
    with BatchRunner(package, sequences=2, capacity=96, kv_format="f16", threads=THREADS, most_rows=32) as runner:
        answers = list(islice(DialogueWriter(runner, texts.tokenizer, find_markers(texts), 1).answers(), 6))
    target = read_target(package, np.arange(package.manifest.model.vocab_size))
    greedy = [answer for answer in answers if answer.temperature == 0]
    right = total = 0
    for answer in greedy:
        hidden = torch.from_numpy(answer.hidden[answer.begin - 1 - answer.first_row :].astype(np.float32))
        said = target.logits(hidden).argmax(-1).numpy()
        wanted = answer.token_ids[answer.begin :]
        right += int((said == wanted).sum())
        total += len(wanted)
    assert total > 0
    assert right >= 0.97 * total


def test_the_drafter_drafts(package, work, tmp_path, native_package):
    report = train(package, work, tmp_path / "head")
    folder = report.drafter.path
    assert open_drafter(folder).id == report.drafter.id
    assert json.loads((folder / "drafter.json").read_text())["training"]["data"].startswith("answers of the model")
    with edge_rt.load(native_package, drafter=folder, spec="head", threads=THREADS) as model:
        model.speculation.costs = FREE_ROWS
        drafted = model.generate("Hello there", max_tokens=80, temperature=0.0)
    with edge_rt.load(native_package, spec="off", threads=THREADS) as model:
        plain = model.generate("Hello there", max_tokens=80, temperature=0.0)
    assert drafted.token_ids == plain.token_ids
    assert drafted.spec.draft_n > 0


LAYERS = (1, 4)
"""Two of the three exits of the package."""


@pytest.fixture(scope="module")
def exit_answers(agreeing, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exit-answers")
    write_answers(open_package(agreeing.cut), folder, replace(OPTIONS, exits=LAYERS))
    return folder


class Asked:
    """An adapter that keeps what it is asked."""

    def __init__(self):
        self.states = []

    def likely(self, hidden, token_id):
        self.states.append(hidden[0].astype(np.float16))
        return TopTokens(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32))


class TestExits:
    @pytest.fixture
    def package(self, agreeing):
        return open_package(agreeing.cut)

    @pytest.fixture
    def work(self, exit_answers, tmp_path):
        return Path(shutil.copytree(exit_answers, tmp_path / "work"))

    def train(self, package, work, out, **changes):
        return train(package, work, out, exits=LAYERS, **changes)

    def recorded(self, package, layer):
        model = package.manifest.model
        return Recorded(model.hidden_size, model.vocab_size, len(LAYERS), LAYERS.index(layer))

    def test_they_learn_and_draft(self, package, work, tmp_path, agreeing):
        report = self.train(package, work, tmp_path / "exits")
        assert report.drafter is not None
        info = report.drafter.info
        assert info.kind == "exit"
        assert set(info.layers) <= set(LAYERS)
        for record in info.exits:
            found = report.exits[record.layer]
            assert found.is_better
            assert record.top1 == pytest.approx(found.reached.first[0], abs=1e-4)
            assert record.top1 <= record.top2 <= record.top4
        assert tuple(report.exits) == LAYERS
        assert info.training.steps == len(LAYERS) * OPTIONS.updates
        assert list(work.glob("checkpoint*")) == []
        report.drafter.verify()
        with edge_rt.load(agreeing.cut, drafter=report.drafter.path, spec="exit", threads=THREADS) as model:
            drafted = model.generate("Hello there", max_tokens=80, temperature=0.0)
        with edge_rt.load(agreeing.whole, spec="off", threads=THREADS) as model:
            assert drafted.token_ids == model.generate("Hello there", max_tokens=80, temperature=0.0).token_ids

    @pytest.mark.parametrize("layer", LAYERS)
    def test_recorded_states_are_those_that_drafts_begin_with(self, package, work, layer):
        cut, asked = CutPasses(package.path, "f16", capacity=512), Asked()
        segments = package.manifest.exits.index(layer) + 1
        cut.runner.adapt(segments, asked)
        (path,) = shard_paths(work)
        shard = self.recorded(package, layer).read(path, is_held_out=True)
        anchors = anchors_of([shard], package.manifest.model.hidden_size)
        tokens, begin, rows, _ = shard.answers[0].tolist()
        ids = shard.ids[:tokens].tolist()
        cut.append_in(50, ids[:begin])
        for token in ids[begin : tokens - 1]:
            cut.draft([token], segments)
            cut.append([token])
        # The row of an answer's token is known when the model says the next one.
        places = torch.arange(rows - (tokens - begin), rows - 1)
        assert anchors.tokens(places).tolist() == ids[begin : tokens - 1]
        assert np.array_equal(anchors.begins(places).numpy(), np.float32(asked.states))
        assert len(asked.states) > 2

    def test_what_is_measured_is_what_the_adapter_guesses(self, package, work, tmp_path):
        report = self.train(package, work, tmp_path / "exits")
        layer = report.drafter.info.layers[-1]
        adapter = load_adapters(package.path, report.drafter).by_layer[layer]
        anchors = held_out(shard_paths(work), self.recorded(package, layer))
        places = anchors.places[:200]
        states, trained = anchors.begins(places).numpy(), report.exits[layer]
        right = 0
        for state, row in zip(states, places.tolist(), strict=True):
            guess = adapter.likely(state[None], int(anchors.next_ids[row])).ids[0, 0]
            right += int(guess == anchors.next_ids[row + 1])
        few = replace(anchors, places=places)
        measured = acceptance(trained.net, trained.target, few, steps=1).first[0] * len(places)
        # The operator rounds activations to 8 bits, so single guesses may differ.
        assert abs(right - measured) <= 4

    def test_a_stopped_run_goes_on_with_the_exit_it_was_at(self, package, work, tmp_path):
        whole = self.train(package, Path(shutil.copytree(work, tmp_path / "whole-work")), tmp_path / "whole")
        options = replace(OPTIONS, exits=LAYERS)
        first = train_head(package, work, options, RECIPE, layer=1)
        assert checkpoint.file_of(work, "exit1").exists()
        report = self.train(package, work, tmp_path / "exits")
        assert report.exits[1].updates == first.updates == OPTIONS.updates
        assert report.drafter.info.layers == whole.drafter.info.layers
        # A checkpoint has half precision.
        for layer in LAYERS:
            assert report.exits[layer].reached.first[0] == pytest.approx(whole.exits[layer].reached.first[0], abs=0.01)
        assert list(work.glob("checkpoint*")) == []

    def test_answers_without_states_of_these_exits_are_refused(self, package, work, tmp_path):
        with pytest.raises(StorageError, match="columns are wanted"):
            train(package, work, tmp_path / "exits", exits=(1, 3, 4))

    @pytest.mark.parametrize(
        ("changes", "recipe", "match"),
        [
            ({"exits": (1, 2)}, RECIPE, "has not all of these exits"),
            ({"exits": (1,)}, replace(RECIPE, steps=2), "guesses one token"),
        ],
    )
    def test_what_cannot_be_trained(self, package, work, tmp_path, changes, recipe, match):
        with pytest.raises(ConfigError, match=match):
            train_drafter(package, tmp_path / "exits", work, replace(OPTIONS, **changes), recipe=recipe)

    def test_a_head_for_a_package_with_exits(self, package, tmp_path):
        report = train(package, tmp_path / "work", tmp_path / "head")
        assert report.drafter.info.kind == "head"
        assert report.exits == {}
