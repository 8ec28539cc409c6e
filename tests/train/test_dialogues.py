"""Dialogues that a model writes itself."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest

from edge_rt.errors import StorageError
from edge_rt.ort.session import pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.system.machine import usable_cpus
from edge_rt.train.answers import pack, read_shard, shard_paths, write_shard, written
from edge_rt.train.batch import BatchRunner
from edge_rt.train.dialogues.tasks import Tasks
from edge_rt.train.dialogues.writer import DialogueWriter, find_markers, repeats_itself
from tests.helpers.models import load_package

CAPACITY = 200


@pytest.fixture(scope="module")
def package(native_package):
    return open_package(native_package)


@pytest.fixture(scope="module")
def texts(package):
    return PromptEncoder(package, 512)


@pytest.fixture(scope="module")
def markers(texts):
    return find_markers(texts)


@pytest.fixture(scope="module")
def answers(package, texts, markers):
    return write(package, texts, markers, seed=3, count=12)


def write(package, texts, markers, *, seed, count, sequences=4):
    threads = pool_size() or usable_cpus()
    with BatchRunner(
        package, sequences=sequences, capacity=CAPACITY, kv_format="f16", threads=threads, most_rows=64
    ) as runner:
        writer = DialogueWriter(runner, texts.tokenizer, markers, seed)
        return list(islice(writer.answers(), count))


def test_markers_join_to_what_the_template_writes(texts, markers):
    rendered = texts.render([{"role": "user", "content": "Hello there"}])
    whole = texts.tokenizer.encode_spans(rendered.spans())
    hello = texts.tokenizer.encode_text("Hello there")
    assert [*markers.first_user, *hello, *markers.answer] == whole
    assert set(texts.tokenizer.eos_token_ids) <= markers.ends


def test_answers_begin_behind_the_marker(answers, markers):
    for answer in answers:
        ids = answer.token_ids.tolist()
        size = len(markers.answer)
        assert tuple(ids[answer.begin - size : answer.begin]) == markers.answer
        assert tuple(ids[: len(markers.first_user)]) == markers.first_user
        assert len(answer.hidden) == len(ids) - 1 - answer.first_row
        assert answer.temperature in (0.0, 0.4, 0.8)
        assert len(ids) <= CAPACITY
        assert not markers.ends & set(ids[answer.begin : -1])


def test_greedy_answers_are_those_of_the_model(package, answers, markers):
    greedy = [answer for answer in answers if answer.temperature == 0.0]
    assert greedy
    with load_package(package.path, spec="off", kv="f16") as model:
        for answer in greedy[:4]:
            prompt, ids = answer.token_ids[: answer.begin].tolist(), answer.token_ids[answer.begin :].tolist()
            result = model.generate(prompt, temperature=0.0, max_tokens=len(ids))
            assert list(result.token_ids)[: len(ids) - 1] == ids[:-1]


def test_a_seed_repeats_its_dialogues(package, texts, markers, answers):
    again = write(package, texts, markers, seed=3, count=6)
    for one, other in zip(answers, again, strict=False):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(one.hidden, other.hidden)
    other = write(package, texts, markers, seed=4, count=6)
    assert any(not np.array_equal(one.token_ids, two.token_ids) for one, two in zip(again, other, strict=True))


@pytest.mark.parametrize("period", [1, 2, 7, 13, 39])
def test_loops_are_seen(period):
    rng = random.Random(period)
    start = [rng.randrange(1000) for _ in range(20)]
    cycle = [1000 + index for index in range(period)]
    copies = -(-200 // period)
    assert repeats_itself(start + cycle * copies)
    assert not repeats_itself(start + cycle * 2)
    assert not repeats_itself([rng.randrange(10**6) for _ in range(300)])


def test_tasks_use_passages_once_there_are_some():
    tasks = Tasks(random.Random(1))
    assert not any("PASSAGE" in tasks.first().text for _ in range(300))
    for number in range(50):
        tasks.learn(" ".join(f"PASSAGE{number} word{index}." for index in range(60)))
    openings = [tasks.first() for _ in range(600)]
    with_passage = [one for one in openings if "PASSAGE" in one.text]
    assert 60 < len(with_passage) < 200
    assert {one.is_whole for one in with_passage} == {True, False}
    assert not any("{" in one.text and "}" in one.text for one in openings)
    german = [one.text for one in openings if one.is_whole and "PASSAGE" not in one.text]
    assert 40 < len(german) < 140
    assert len(set(german)) == len(german)


def test_short_and_repetitive_answers_are_no_passages():
    tasks = Tasks(random.Random(1))
    for _ in range(100):
        tasks.learn("too short")
        tasks.learn("the same words " * 100)
    assert not any("same words" in tasks.first().text for _ in range(300))


def test_shards_give_back_what_was_packed(tmp_path, answers, package):
    config = package.manifest.model
    shard = pack(answers)
    write_shard(tmp_path / "answers-00000.npz", shard)
    found = read_shard(tmp_path / "answers-00000.npz", config.hidden_size, config.vocab_size)
    assert all(np.array_equal(one, two) for one, two in zip(shard, found, strict=True))
    assert found.num_tokens == sum(len(answer.token_ids) - answer.begin for answer in answers)


def test_files_are_written_behind_earlier_ones(tmp_path, answers):
    many = [answer for _ in range(400) for answer in answers]
    for turn in (1, 2):
        shards = list(islice(written(tmp_path, iter(many)), 1))
        assert len(shards) == 1
        assert len(shard_paths(tmp_path)) == turn


BROKEN = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "text": lambda data: b"no file of numpy",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_a_storage_error(tmp_path, answers, package, name):
    config = package.manifest.model
    path = tmp_path / "answers-00000.npz"
    write_shard(path, pack(answers))
    path.write_bytes(BROKEN[name](path.read_bytes()))
    with pytest.raises(StorageError, match="cannot be used for training"):
        read_shard(path, config.hidden_size, config.vocab_size)


WRONG = {
    "other model": lambda shard: shard._replace(hidden=shard.hidden[:, :-1].copy()),
    "other type": lambda shard: shard._replace(hidden=shard.hidden.astype(np.float32)),
    "no answers": lambda shard: shard._replace(answers=shard.answers[:0]),
    "missing rows": lambda shard: shard._replace(hidden=shard.hidden[:-1]),
    "missing tokens": lambda shard: shard._replace(ids=shard.ids[:-1]),
    "unknown token": lambda shard: shard._replace(ids=np.where(np.arange(len(shard.ids)) == 3, 1 << 30, shard.ids)),
    "begin behind the end": lambda shard: shard._replace(answers=np.add(shard.answers, [0, 1 << 20, 0, 0])),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_does_not_add_up_is_a_storage_error(tmp_path, answers, package, name):
    config = package.manifest.model
    path = tmp_path / "answers-00000.npz"
    changed = WRONG[name](pack(answers))
    write_shard(path, changed._replace(ids=changed.ids.astype(np.int32)))
    with pytest.raises(StorageError, match="cannot be used for training"):
        read_shard(path, config.hidden_size, config.vocab_size)
