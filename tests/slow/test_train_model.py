"""A draft model trained for a tiny model: it learns, becomes a package with the same tokenizer, and can be stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

import edge_rt
from edge_rt.errors import ConfigError, StorageError, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.export.families.rope import default_rope
from edge_rt.ort.session import pool_size
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Attention, FeedForward, Layer
from edge_rt.package.reader import open_package
from edge_rt.system.machine import usable_cpus
from edge_rt.train import checkpoint
from edge_rt.train.answers import read_shard, shard_paths, write_answers
from edge_rt.train.batch import BatchRunner
from edge_rt.train.batches import split
from edge_rt.train.draft_model.learn import DraftNet, ModelRecipe, Vocabularies
from edge_rt.train.draft_model.net import DraftLayers
from edge_rt.train.draft_model.plain import PlainLayers
from edge_rt.train.draft_model.run import KIND, model_acceptance, package_acceptance, train_draft_model, train_model
from edge_rt.train.draft_model.sequences import Batch, SequenceBatches, held_out_sequences, join, sequences_of
from edge_rt.train.options import TrainOptions
from edge_rt.train.target import read_target
from edge_rt.train.trainable import require_plain
from tests.helpers.gguf_factory import write_llama_gguf

pytestmark = pytest.mark.slow

OPTIONS = TrainOptions(tokens=20_000, updates=80, vocabulary=128, layers=1)
RECIPE = ModelRecipe(tokens=1024, others=64, warm_up=5, learning_rate=3e-3, fit_rows=300)


def threads():
    """The pool of this process, or what it would be."""
    return pool_size() or usable_cpus()


@pytest.fixture(scope="module")
def package(native_package):
    return open_package(native_package)


@pytest.fixture(scope="module")
def answers(package, tmp_path_factory):
    """A folder with one file of answers; nobody may change it."""
    folder = tmp_path_factory.mktemp("answers")
    write_answers(package, folder, replace(OPTIONS, threads=threads()))
    return folder


@pytest.fixture
def work(answers, tmp_path):
    return Path(shutil.copytree(answers, tmp_path / "work"))


def train(package, work, out, **changes):
    more = {"force": changes.pop("force", False), "weights": changes.pop("weights", None)}
    return train_draft_model(package, out, work, replace(OPTIONS, threads=threads(), **changes), recipe=RECIPE, **more)


def guesses_of(package, layers):
    """The first layers of a model behind its embedding and before its head."""
    reader, config = PlainLayers(package), package.manifest.model
    net = DraftLayers(config, [reader.layer(number) for number in range(layers)])
    rotations = [torch.from_numpy(table) for table in reader.rotations(range(config.context_length))]
    return DraftNet(net, read_target(package, np.arange(config.vocab_size)), tuple(rotations))


def exported(path, weights="keep", **shape):
    file = write_llama_gguf(path.with_suffix(".gguf"), context=512, **shape)
    export_model(file.path, path, profile="native", weights=weights)
    return open_package(path)


FORMS = {
    "Q4_1 with a tied head": {},
    "Q8_0 with a head of its own": {"weight_type": "Q8_0", "tied": False},
    "types that lie apart": {"types": lambda name: "Q8_0" if "ffn_up" in name or "attn_k" in name else None},
    "types side by side": {"types": lambda name: "Q5_1" if "ffn_up" in name or "attn_k" in name else None},
    "floats": {"weight_type": "F16", "embedding_type": "F16", "output_type": "F16"},
    "nested": {"weight_type": "F32", "embedding_type": "F32", "weights": "nested8"},
    "linear rotations": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "wide heads": {"heads": 2, "kv_heads": 1, "head_dim": 64, "layers": 3},
}


@pytest.mark.parametrize("form", FORMS)
def test_all_layers_of_a_package_give_its_hidden_states(form, tmp_path):
    """What is read out of tiles is what the passes compute with: q, k, v, gate and up are where they belong."""
    package = exported(tmp_path / "model", **FORMS[form])
    config = package.manifest.model
    ids = np.random.default_rng(3).integers(3, config.vocab_size, 60)
    with BatchRunner(package, sequences=1, capacity=64, kv_format="f32", threads=threads(), most_rows=64) as runner:
        wanted = torch.from_numpy(runner.forward([ids.tolist()], [True])[0].hidden.copy())
    everywhere = torch.arange(len(ids))
    states = torch.zeros(len(ids), config.hidden_size)
    batch = Batch(torch.from_numpy(ids)[None], everywhere, everywhere, everywhere, states)
    guesses = guesses_of(package, config.num_layers)
    with torch.no_grad():
        found = guesses.states(batch)
    error = float((found - wanted).pow(2).mean() / wanted.pow(2).mean())
    # Passes round activations to 8 bits per 32 numbers.
    assert error < 1e-3
    assert float(functional.cosine_similarity(found, wanted, dim=-1).min()) > 0.999
    assert torch.equal(guesses.target.embedding, guesses.target.head) == config.is_tied


def test_it_learns_and_becomes_a_package_with_the_same_tokenizer(package, work, tmp_path):
    report = train(package, work, tmp_path / "draft")
    trained = report.trained
    assert trained.reached.first[0] > trained.untrained.first[0] > 0
    assert trained.updates == OPTIONS.updates
    draft = open_package(tmp_path / "draft")
    draft.verify()
    assert report.exported.path == draft.path
    ours, theirs = draft.manifest, package.manifest
    assert ours.files["tokenizer.json"] == theirs.files["tokenizer.json"]
    assert ours.files["chat_template.jinja"] == theirs.files["chat_template.jinja"]
    assert ours.tokenizer == theirs.tokenizer
    assert ours.model.num_layers == 1
    same = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size")
    same += ("context_length", "norm_epsilon", "ropes", "is_tied")
    assert [getattr(ours.model, name) for name in same] == [getattr(theirs.model, name) for name in same]
    assert ours.source.kind == "safetensors"
    assert ours.source.name.endswith("-draft-1-layers")
    # Nothing but answers stays in the working folder.
    assert {path.suffix for path in work.iterdir()} == {".npz"}
    assert not checkpoint.file_of(work, KIND).exists()
    with edge_rt.load(draft.path, spec="off", threads=threads()) as model:
        assert len(model.generate("Hello there", max_tokens=12, temperature=0.0).token_ids) > 0


def test_what_is_measured_is_what_the_package_guesses(package, work, tmp_path):
    report = train(package, work, tmp_path / "draft", weights="int8")
    measured, packaged = report.trained.reached, report.packaged
    assert packaged.anchors == measured.anchors > 500
    assert packaged.first[0] == pytest.approx(measured.first[0], abs=0.03)
    # The same draft model, measured again from its package alone.
    again = package_acceptance(
        open_package(tmp_path / "draft"),
        read_target(package, np.arange(package.manifest.model.vocab_size)),
        report.trained.held_out,
        kv_format="f16",
        threads=threads(),
    )
    assert again == packaged


def test_positions_are_counted_as_a_draft_runs(package, answers):
    """Shares by position are those of drafting token by token."""
    config = package.manifest.model
    guesses = guesses_of(package, 2)
    few = held_out_sequences(shard_paths(answers), config.hidden_size, config.vocab_size, 64, 200)[:3]
    found = model_acceptance(lambda some: guesses.states(join(some)), guesses.target, few)
    right, tried = [0, 0, 0], [0, 0, 0]
    with torch.no_grad():
        for one in few:
            for place in range(len(one.next_ids)):
                truth = one.next_ids[place:].tolist()[:3]
                ids = one.token_ids[: len(one.token_ids) - len(one.next_ids) + place + 1].tolist()
                for step, token in enumerate(truth):
                    last = torch.tensor([len(ids) - 1])
                    batch = Batch(torch.tensor([ids]), last, last, last, torch.zeros(1, config.hidden_size))
                    guess = int(guesses.target.logits(guesses.states(batch)).argmax())
                    tried[step] += 1
                    right[step] += guess == token
                    if guess != token:
                        break
                    ids.append(guess)
    shares = [one / all_ for one, all_ in zip(right, tried, strict=True)]
    assert found.anchors == tried[0]
    assert found.by_position == pytest.approx(shares, abs=0.01)


def test_a_seed_repeats_it(package, work):
    few = replace(OPTIONS, updates=10)
    first = train_model(package, work, few, RECIPE)
    checkpoint.delete(work, KIND)
    second = train_model(package, work, few, RECIPE)
    checkpoint.delete(work, KIND)
    other = train_model(package, work, replace(few, seed=1), RECIPE)
    weights = [one.guesses.net.last.down for one in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_stopped_run_goes_on(package, work, tmp_path):
    def stop(event):
        if event.stage == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # Reports come every 20 seconds, so an endless training meets the first one.
        train_model(package, work, replace(OPTIONS, updates=10**6), RECIPE, stop)
    net = guesses_of(package, 1).net
    state = checkpoint.load(checkpoint.file_of(work, KIND), net, OPTIONS.seed, package.manifest.model.vocab_size)
    assert state.updates > 0
    files = len(shard_paths(work))
    report = train(package, work, tmp_path / "draft", tokens=10**9, updates=state.updates + 3)
    assert report.trained.updates == state.updates + 3
    assert len(shard_paths(work)) == files  # no more answers before the training is over
    assert report.trained.reached.first[0] > report.trained.untrained.first[0]
    assert open_package(tmp_path / "draft").manifest.model.num_layers == 1


def test_a_checkpoint_of_other_layers_is_refused_and_stays(package, work, tmp_path):
    file = checkpoint.file_of(work, KIND)
    checkpoint.save(file, guesses_of(package, 2).net, checkpoint.State(3, 1.0, np.arange(16), 0), most_bytes=None)
    good = file.read_bytes()
    with pytest.raises(StorageError, match="shape"):
        train(package, work, tmp_path / "draft")
    assert file.read_bytes() == good
    assert not (tmp_path / "draft").exists()


def test_a_checkpoint_of_a_head_is_another_file(tmp_path):
    assert checkpoint.file_of(tmp_path) != checkpoint.file_of(tmp_path, KIND)


def test_a_package_that_is_there_stays(package, work, tmp_path):
    out = tmp_path / "draft"
    out.mkdir()
    (out / "mine").write_text("kept")
    with pytest.raises(StorageError):
        train(package, work, out)
    assert (out / "mine").read_text() == "kept"
    # The training is not lost: its checkpoint is there, and only the export is left to do.
    assert checkpoint.file_of(work, KIND).exists()
    report = train(package, work, tmp_path / "other")
    assert report.trained.updates == OPTIONS.updates
    assert open_package(tmp_path / "other").manifest.model.num_layers == 1


def test_what_learned_nothing_is_not_written(package, work, tmp_path):
    report = train(package, work, tmp_path / "draft", updates=0)
    assert report.exported is None
    assert report.size_bytes is None
    assert not (tmp_path / "draft").exists()
    assert not checkpoint.file_of(work, KIND).exists()


def test_as_many_layers_as_the_model_are_refused(package, tmp_path):
    for layers in (0, 2, 3):
        with pytest.raises(ConfigError, match="fewer layers"):
            train(package, tmp_path / "work", tmp_path / "draft", layers=layers)
    assert not (tmp_path / "work").exists()


def test_models_that_are_no_plain_llama_are_refused(small_package, segmented, tmp_path):
    file = write_llama_gguf(
        tmp_path / "mistral.gguf", context=512, extra_metadata={"llama.attention.sliding_window": 64}
    )
    export_model(file.path, tmp_path / "window", profile="native")
    cases = {
        "portable": (small_package, "'portable'"),
        "segmented": (segmented.cut, "segments"),
        "window": (tmp_path / "window", "sliding windows"),
    }
    for path, words in cases.values():
        with pytest.raises(UnsupportedModel, match=words):
            train(open_package(path), tmp_path / "work", tmp_path / "draft")
        assert not (tmp_path / "work").exists()


ATTENTION = Attention(4, 2, 16, 0.25)
FEED_FORWARD = FeedForward(128)
STRANGE = {
    "norms of queries and keys": {"kinds": (Layer(replace(ATTENTION, qk_norm="head"), FEED_FORWARD),)},
    "biases": {"kinds": (Layer(replace(ATTENTION, has_qkv_bias=True), FEED_FORWARD),)},
    "the activation 'gelu'": {"kinds": (Layer(ATTENTION, replace(FEED_FORWARD, activation="gelu")),)},
    "norms of what sub-layers add": {"kinds": (Layer(ATTENTION, FEED_FORWARD, has_post_norms=True),)},
    "capped logits": {"logit_softcap": 30.0},
    "rotations of a part of a head": {"ropes": (default_rope(10_000.0, 8),)},
    "layers of several kinds": {
        "kinds": (Layer(ATTENTION, FEED_FORWARD), Layer(ATTENTION, replace(FEED_FORWARD, size=64))),
        "pattern": (0, 1),
    },
}


@pytest.mark.parametrize("words", STRANGE)
def test_the_error_says_what_a_model_has(words, package):
    plain = (Layer(ATTENTION, FEED_FORWARD),)
    rope = default_rope(10_000.0, 16)
    decoder = Decoder("strange", "other", 64, 419, 512, plain, (0, 0), (rope,), 1e-5)
    manifest = replace(package.manifest, decoder=replace(decoder, **STRANGE[words]))
    with pytest.raises(UnsupportedModel, match=f"it has {words}\\."):
        require_plain(SimpleNamespace(manifest=manifest))


def test_drawn_tokens_stand_for_those_that_are_not(package):
    """The distribution over the tokens of an update is that over all tokens, on average."""
    torch.manual_seed(0)
    logits = torch.randn(200)
    draws = Vocabularies(torch.arange(40), 200, 20, seed=0)
    shares = []
    for _ in range(3000):
        ids, shifts = draws.draw()
        assert sorted(ids[:40].tolist()) == list(range(40))
        assert len(set(ids.tolist())) == 60
        shares.append(float((logits[ids] + shifts).logsumexp(0).exp()))
    assert np.mean(shares) == pytest.approx(float(logits.exp().sum()), rel=0.01)
    everything, shifts = Vocabularies(torch.arange(200), 200, 20, seed=0).draw()
    assert len(everything) == 200
    assert not shifts.any()


def test_every_answer_comes_once_in_a_round(package, answers):
    config = package.manifest.model
    sizes = (config.hidden_size, config.vocab_size)
    shards = [split(read_shard(path, *sizes), is_held_out=False) for path in shard_paths(answers)]
    wanted = [one for shard in shards for one in sequences_of(shard, 64)]
    ids = sorted(int(token) for one in wanted for token in one.next_ids)
    drawn = SequenceBatches(
        shard_paths(answers), hidden_size=sizes[0], vocab_size=sizes[1], context=64, tokens=1024, seed=5
    ).draw()
    for _ in range(2):
        found = []
        while len(found) < len(ids):
            batch = next(drawn)
            assert batch.token_ids.numel() <= 1024
            assert batch.hidden.shape == (len(batch.rows), config.hidden_size)
            found += batch.next_ids.tolist()
        assert sorted(found) == ids
