from __future__ import annotations

import json
import signal

import pytest

from edge_rt.cli.commands.verify import _loading
from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.measure.verify import Answer, VerifyState
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from tests.helpers.packages import copied
from tests.helpers.tiny_drafter import for_package

MODES = ["auto", "ngram", "suffix", "recycling"]
HEADER = {"package_id": "abc", "options": {"max_tokens": 5}, "spec": ["auto"]}
ANSWERS = [
    Answer("f32", "off", 0, (1, 2), 1),
    Answer("f32", "auto", 0, (1, 2), 1, 3),
    Answer("f32", "off", 1, (), 0, 0, (9, 5, 8)),
]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("the sea was calm\nthey came to an island\ncount from one to ten\n")
    return path


@pytest.fixture
def check(inline, native_package, prompts):
    return lambda *arguments: inline("verify", "-m", native_package, "--prompts", prompts, "-n", "12", *arguments)


def test_every_drafter_and_cache_format_is_compared(check):
    result = check("--kv-type", "f32", "--kv-type", "int8", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 0
    assert document["first_difference"] is None
    assert (document["prompts"], document["identical"]) == (6, 6)
    assert list(document["by_drafter"]) == MODES
    for item in document["by_drafter"].values():
        assert list(item) == ["prompts", "identical", "first_difference", "tokens", "tokens_per_step", "drafted"]
        assert (item["prompts"], item["identical"], item["tokens"]) == (6, 6, 72)
        assert item["tokens_per_step"] >= 1
    assert {kv: part["prompts"] for kv, part in document["by_kv"].items()} == {"f32": 3, "int8": 3}
    assert document["left_out"] == []
    assert document["drafted"] == sum(item["drafted"] for item in document["by_drafter"].values()) > 0
    assert document["drafted"] == sum(part["drafted"] for part in document["by_kv"].values())


def test_what_drafted_nothing_is_said(check):
    """Identical answers then prove nothing, which is no difference either. One token is never drafted for."""
    result = check("--limit", "1", "--spec", "ngram", "-n", "1")
    assert result.returncode == 0
    assert result.stdout.decode().splitlines()[-1] == "every answer is identical, but nothing was drafted"
    assert b"warning: nothing was drafted, so nothing was verified: try longer answers (-n)" in result.stderr
    document = json.loads(check("--limit", "1", "--spec", "ngram", "-n", "1", "--json").stdout)
    assert (document["drafted"], document["identical"]) == (0, 1)
    assert [text.partition(":")[0] for text in document["notes"]] == ["nothing was drafted, so nothing was verified"]


def test_which_drafter_drafted_nothing_is_said(check, tmp_path):
    state, asked = tmp_path / "state.jsonl", ("--limit", "1", "--spec", "suffix", "--spec", "recycling")
    check("--state", state, *asked)
    header, *lines = map(json.loads, state.read_text().splitlines())
    for line in lines:
        line["drafted"] = 7 if line["mode"] == "suffix" else 0
    state.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    result = check("--state", state, *asked, "--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["drafted"]) == (0, 7)
    (note,) = document["notes"]
    assert note.startswith("nothing was drafted by recycling, so nothing of that was verified: try longer answers")


def test_without_a_file_there_are_prompts(inline, native_package):
    arguments = ("verify", "-m", native_package, "--limit", "2", "-n", "6", "--spec", "reference", "--raw")
    result = inline(*arguments, "--temp", "0.9", "--top-k", "20", "--repeat-penalty", "1.3", "--seed", "5")
    lines = result.stdout.decode().splitlines()
    assert result.returncode == 0
    assert lines[0].split() == ["drafter", "prompts", "identical", "tokens", "rows", "drafted", "tok/step"]
    assert lines[1].split()[:4] == ["reference", "2", "2", "12"]
    assert lines[2] == "every answer is identical"
    assert b"answers (int8, reference), 0 different" in result.stderr


def test_work_is_taken_up_where_it_ended(check, tmp_path):
    state = tmp_path / "state.jsonl"
    assert check("--state", state, "--spec", "suffix", "--limit", "1", "--json").returncode == 0
    first = state.read_bytes()
    assert first.count(b"\n") == 3
    result = check("--state", state, "--spec", "suffix", "--json")
    whole = state.read_bytes()
    assert b"2 of 6 answers are already there" in result.stderr
    assert whole.startswith(first)
    assert whole.count(b"\n") == 7
    again = check("--state", state, "--spec", "suffix", "--json")
    assert state.read_bytes() == whole
    assert json.loads(again.stdout) == json.loads(result.stdout)


def test_a_difference_is_told_with_its_tokens_and_exit_code(check, tmp_path):
    state = tmp_path / "state.jsonl"
    check("--state", state, "--spec", "suffix")
    header, *lines = map(json.loads, state.read_text().splitlines())
    lines[4]["token_ids"][3] = wrong = (lines[4]["token_ids"][3] + 1) % 300
    state.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    result = check("--state", state, "--spec", "suffix", "--json")
    document = json.loads(result.stdout)
    found = document["first_difference"]
    assert (result.returncode, document["identical"], document["prompts"]) == (1, 2, 3)
    assert (found["drafter"], found["prompt"], found["position"]) == ("suffix", 1, 3)
    assert (found["plain"], found["speculative"]) == (lines[1]["token_ids"][3], wrong)
    assert isinstance(found["plain_text"], str)
    lines[4]["token_ids"] = lines[4]["token_ids"][:2]
    state.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    told = check("--state", state, "--spec", "suffix").stdout.decode()
    assert "suffix first differs in prompt 1 (int8) at token 2: plain " in told
    assert "speculative the end" in told
    assert "identical" not in told.splitlines()[-1]


def test_another_verification_is_refused(check, tmp_path):
    state = tmp_path / "state.jsonl"
    check("--state", state, "--spec", "suffix")
    before = state.read_bytes()
    result = check("--state", state, "--spec", "ngram", "--seed", "3", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.returncode, error["type"]) == (2, "ConfigError")
    assert error["numbers"] == "seed was 0, is now 3; spec was ['suffix'], is now ['ngram']."
    assert state.read_bytes() == before


def test_the_portable_profile_promises_nothing(inline, small_package, prompts):
    result = inline("verify", "-m", small_package, "--prompts", prompts, "-n", "4", "--limit", "1", "--spec", "auto")
    assert result.returncode == 0
    assert b"warning: identical answers are not guaranteed in the op profile portable" in result.stderr


def test_recycling_is_left_out_of_the_portable_profile_and_that_is_said(inline, small_package, prompts):
    arguments = ("verify", "-m", small_package, "--prompts", prompts, "-n", "4", "--limit", "1", "--json")
    result = inline(*arguments)
    document = json.loads(result.stdout)
    assert list(document["by_drafter"]) == document["run"]["spec"] == ["auto", "ngram", "suffix"]
    assert b"; recycling is left out: it never drafts" in result.stderr
    alone = inline(*arguments, "--spec", "recycling")
    assert (alone.returncode, b"nothing to verify with --spec recycling" in alone.stderr) == (2, True)
    assert b"left out" not in inline(*arguments, "--spec", "ngram").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--spec", "off"), "nothing to verify"),
        (("--spec", "magic"), "mode of speculation is unknown"),
        (("--kv-type", "int8", "--kv-type", "int3"), "no such cache format"),
        (("--spec", "ngram", "--corpus", "x"), "--corpus is not used"),
        (("--spec", "ngram", "--drafter", "none"), "--drafter is not used"),
        (("--temp", "-1"), "'temperature'"),
        (("-n", "0"), "--max-tokens"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(arguments, said, check):
    result = check(*arguments)
    assert result.returncode == 2
    assert said in result.stderr.decode()


def test_a_second_model_is_compared_among_others(inline, check, native_package, prompts, tmp_path):
    package = copied(native_package, tmp_path)
    for_package(package / "drafters" / "tiny", open_package(package).manifest)
    asked = ("--spec", "head", "--spec", "auto", "--spec", f"model:{native_package}")
    result = inline("verify", "-m", package, "--prompts", prompts, "-n", "8", "--json", *asked)
    assert result.returncode == 0, result.stderr
    assert list(json.loads(result.stdout)["by_drafter"]) == list(asked[1::2])
    twice = check("--spec", f"model:{native_package}", "--spec", f"model:{package}")
    assert (twice.returncode, b"cannot be loaded together" in twice.stderr) == (2, True)


@pytest.mark.parametrize(
    ("modes", "loaded"),
    [(["head"], "head"), (["auto"], "auto"), (["ngram", "suffix"], "auto"), (["auto", "self"], "self")],
)
def test_what_is_verified_is_not_given_up_under_a_budget(modes, loaded):
    assert _loading(modes, LoadOptions(memory="300MiB")).spec == loaded


def test_long_prompts_are_left_out_but_not_all(check, prompts):
    prompts.write_text("word " * 600 + "\nshort\n")
    result = check("--json", "--spec", "ngram")
    document = json.loads(result.stdout)
    assert (result.returncode, document["prompts"]) == (0, 1)
    assert [(item["prompt"], item["context_tokens"]) for item in document["left_out"]] == [(0, 512)]
    assert b"warning: 1 left out, too long for the context: 0" in result.stderr
    result = check("--json", "--spec", "ngram", "--limit", "1")
    assert json.loads(result.stdout)["error"]["type"] == "ContextOverflow"
    assert result.returncode == 3


def test_ctrl_c_keeps_what_is_done(start, slow_package, prompts, tmp_path):
    state = tmp_path / "state.jsonl"
    arguments = ("verify", "-m", slow_package, "--prompts", prompts, "-n", "300", "--spec", "auto", "--state", state)
    process = start(*arguments)
    # The warning, then the first answer.
    assert b"warning" in process.stderr.readline()
    assert b"1/6 answers" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    told = process.communicate()[1].decode()
    assert process.returncode == 130
    assert "answers are saved: the same command continues from there" in told
    assert state.read_bytes().endswith(b"\n")
    assert 2 <= state.read_bytes().count(b"\n") < 7


# --- the file ---


def test_answers_are_read_back(tmp_path):
    for count in range(len(ANSWERS)):
        with VerifyState(tmp_path / "state", HEADER) as state:
            assert state.answers == ANSWERS[:count]
            state.append(ANSWERS[count])
    with VerifyState(tmp_path / "state", HEADER) as state:
        assert state.answers == ANSWERS


def test_a_file_cut_anywhere_loses_the_last_line_at_most(tmp_path):
    path = tmp_path / "state"
    with VerifyState(path, HEADER) as state:
        for answer in ANSWERS:
            state.append(answer)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = max(whole[:size].count(b"\n") - 1, 0)
        with VerifyState(path, HEADER) as state:
            assert state.answers == ANSWERS[:kept]
            for answer in ANSWERS[kept:]:
                state.append(answer)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("field", ["package_id", "options", "spec", "new"])
def test_every_field_of_the_header_counts(field, tmp_path):
    VerifyState(tmp_path / "state", HEADER).__exit__(None, None, None)
    with pytest.raises(ConfigError, match=field):
        VerifyState(tmp_path / "state", {**HEADER, field: "other"})


@pytest.mark.parametrize(
    "data",
    [
        b"my thesis",
        b"my thesis\n",
        b'{"format": "other"}\n',
        b"[1]\n",
        b'{"format": "edge-rt verify"}',
        b"GOOD{}\n",
        b"GOODnoise\n",
        b"GOOD[]\n",
        b'GOOD{"kv": "f32", "mode": "off", "prompt": 0, "token_ids": [-1], "steps": 0, "drafted": 0}\n',
        b'GOOD{"kv": "f32", "mode": "off", "prompt": 0, "token_ids": [], "steps": 0, "overflow": null}\n',
    ],
)
def test_other_files_are_refused_and_left_alone(data, tmp_path):
    path = tmp_path / "state"
    VerifyState(path, HEADER).__exit__(None, None, None)
    data = data.replace(b"GOOD", path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(InputError, match="not the state of a verification"):
        VerifyState(path, HEADER)
    assert path.read_bytes() == data


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StorageError, match="cannot be used"):
        VerifyState(tmp_path / "absent" / "state", HEADER)
