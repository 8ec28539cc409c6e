"""``edge-rt batch``: files of prompts and of answers, going on with one, and lines that are wrong."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from edge_rt.cli.batch_lines import Answered, Basis
from edge_rt.cli.commands.batch import Count
from edge_rt.measure.kept_lines import LineFile
from tests.cli.conftest import ENDLESS
from tests.helpers.models import load_package

GREEDY = ("--temp", "0", "-n", "6")
MESSAGES = [{"role": "user", "content": "The sea was calm."}]
LINES = [
    {"prompt": "The little boat left the harbour.", "max_tokens": 9},
    {"messages": MESSAGES, "custom_id": "calm", "logit_bias": {"0": -99}},
    {"custom_id": "their", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "any", "messages": MESSAGES, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "n": 1,
              "store": True, "prediction": {"type": "content", "content": "The sea"}}},
]  # fmt: skip
BAD = [
    "not JSON",
    '{"prompt": "a", "temprature": 1}',
    '{"prompt": "a", "custom_id": "calm"}',
    '{"custom_id": "two", "body": {"messages": [{"role": "user", "content": "a"}], "n": 2}}',
    '{"custom_id": "far", "url": "/v1/embeddings", "body": {}}',
]


def write(path, lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def by_number(path):
    return {int(line["id"].split("-")[1]): line for line in read(path)}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("slots", [1, 2])
def test_answers_are_those_of_generate_in_the_form_of_their_lines(inline, native_package, tmp_path, slots):
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", ["", *LINES])
    result = inline("batch", source, out, "-m", native_package, "--slots", slots, *GREEDY, "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["lines"], document["done"], document["failed"]) == (3, 3, 0)
    answers = by_number(out)
    with load_package(native_package, spec="off") as model:
        first = [{"role": "user", "content": LINES[0]["prompt"]}]
        assert answers[2]["result"]["text"] == model.generate(first, max_tokens=9, temperature=0.0).text
        assert "custom_id" not in answers[2]
        calm = model.generate(MESSAGES, max_tokens=6, temperature=0.0, logit_bias={0: -99})
        assert answers[3]["custom_id"] == "calm"
        assert answers[3]["result"]["token_ids"] == list(calm.token_ids)
        theirs = model.generate(MESSAGES, max_tokens=5, temperature=0.0, logprobs=2)
    answer = answers[4]
    assert (answer["custom_id"], answer["error"], answer["response"]["status_code"]) == ("their", None, 200)
    assert answer["response"]["request_id"] == "request-4"
    body = answer["response"]["body"]
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": theirs.text}
    assert choice["finish_reason"] == theirs.finish_reason
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == [one.logprob for one in theirs.logprobs]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert body["usage"]["completion_tokens"] == 5


def test_a_bad_line_has_its_error_and_the_exit_code_says_so(inline, native_package, tmp_path):
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", [LINES[1], *BAD])
    result = inline("batch", source, out, "-m", native_package, *GREEDY)
    assert result.returncode == 3
    assert b"6 of 6 lines, 5 with an error" in result.stdout
    errors = {number: line["error"] for number, line in by_number(out).items()}
    assert errors.pop(1) is None
    assert "'temperature'" in errors[3]["action"]
    assert "earlier line" in errors[4]["what"]
    assert "'n' has one possible value" in errors[5]["message"]
    response = by_number(out)[5]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (400, "ConfigError")
    assert len(errors) == 5
    # They are not tried again, and are still there.
    again = inline("batch", source, out, "-m", native_package, *GREEDY)
    assert (again.returncode, len(read(out))) == (3, 6)


def test_a_file_of_answers_is_gone_on_with(inline, native_package, tmp_path):
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", LINES[:2])
    inline("batch", source, out, "-m", native_package, *GREEDY)
    kept = out.read_bytes()
    # The process was killed while it wrote.
    out.write_bytes(kept + b'{"id": "line-3-0')
    write(source, LINES)
    result = inline("batch", source, out, "-m", native_package, *GREEDY)
    assert b"2 of 3 lines are answered already" in result.stderr
    assert out.read_bytes().startswith(kept)
    assert [line.get("custom_id") for line in read(out)[2:]] == ["their"]


def test_answers_that_come_from_something_else_are_not_mixed(inline, native_package, tmp_path):
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", LINES[:2])
    usual = ("batch", source, out, "-m", native_package, *GREEDY)
    assert inline(*usual).returncode == 0
    kept = out.read_bytes()
    for lines, options, why in (
        (LINES[:1], (), b"1 belong to no line"),
        ([{**LINES[0], "max_tokens": 8}, *LINES[1:]], (), b"What line 1"),
        (LINES, ("--temp", "0.5"), b"other options"),
        # Also where nothing is left to answer, and no model is loaded.
        (LINES[:2], ("--temp", "0.5"), b"other options"),
        (LINES[:2], ("--raw",), b"other options"),
        (LINES, ("--raw",), b"other options"),
        (LINES, ("--kv-type", "f32"), b"another model"),
    ):
        write(source, lines)
        result = inline(*usual, *options)
        assert (result.returncode, why in result.stderr) == (2, True), result.stderr
        assert b"do not go with new ones" in result.stderr
        assert out.read_bytes() == kept
    # What is said in another way, or elsewhere, is the same.
    write(source, [json.dumps(LINES[0], indent=None, separators=(" ,", ": ")), LINES[2], "", LINES[1]])
    assert inline(*usual, "--slots", "2").returncode == 0
    assert out.read_bytes().startswith(kept)
    assert len(read(out)) == 3


def test_two_runs_do_not_write_the_same_file(inline, native_package, tmp_path):
    out, source = tmp_path / "out.jsonl", write(tmp_path / "in.jsonl", LINES)
    with LineFile(out):
        result = inline("batch", source, out, "-m", native_package)
        assert (result.returncode, b"is in use" in result.stderr) == (6, True)
    assert inline("batch", source, out, "-m", native_package, *GREEDY).returncode == 0


def test_standard_input_and_output(inline, native_package, tmp_path):
    out, source = tmp_path / "out.jsonl", write(tmp_path / "in.jsonl", LINES)
    inline("batch", source, out, "-m", native_package, *GREEDY)
    result = inline("batch", "-", "-", "-m", native_package, *GREEDY, stdin=source.read_bytes())
    piped = [json.loads(line) for line in result.stdout.splitlines()]
    assert {one["id"] for one in piped} == {one["id"] for one in read(out)}
    assert b"3 of 3 lines, 0 with an error" in result.stderr
    refused = inline("batch", source, "-", "-m", native_package, "--json")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["numbers"]) == (2, "OUT is '-'.")


@pytest.mark.skipif(os.name == "nt", reason="needs resource limits")
def test_a_full_disk_leaves_whole_lines(inline, native_package, tmp_path):
    import resource

    out, source = tmp_path / "out.jsonl", write(tmp_path / "in.jsonl", LINES)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, limits[1]))
    try:
        result = inline("batch", source, out, "-m", native_package, *GREEDY, "--slots", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.returncode == 6
    assert b"the disk is full or a limit is reached" in result.stderr
    assert out.read_bytes().endswith(b"\n")
    assert inline("batch", source, out, "-m", native_package, *GREEDY).returncode == 0
    assert sorted(by_number(out)) == [1, 2, 3]


def test_files_of_others_are_left_as_they_are(inline, native_package, tmp_path):
    source = write(tmp_path / "in.jsonl", LINES)
    notes = tmp_path / "notes.txt"
    for text in ("my notes", "my notes\n", json.dumps(LINES[2]) + "\n"):
        notes.write_text(text)
        result = inline("batch", source, notes, "-m", native_package)
        assert result.returncode == 3
        assert b"is no file of answers" in result.stderr
        assert notes.read_text() == text
    assert b"are the same file" in inline("batch", source, source, "-m", native_package).stderr
    assert inline("batch", tmp_path / "none", tmp_path / "new", "-m", native_package).returncode == 6
    assert not (tmp_path / "new").exists()


def test_ctrl_c_leaves_whole_lines_and_says_how_to_go_on(start, inline, native_package, tmp_path):
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", [{"prompt": "a", "max_tokens": 2}, *[{"prompt": "b"}] * 5])
    process = start("batch", source, out, "-m", native_package, "--slots", "2", *ENDLESS)
    while not (out.exists() and b"\n" in out.read_bytes()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert b"the same command continues" in process.stderr.read()
    assert out.read_bytes().endswith(b"\n")
    assert [line["line"] for line in read(out)][:1] == [1]


def test_progress_has_tokens_per_second_and_the_time_left():
    now = [0.0]
    count = Count(clock=lambda: now[0])
    for answered in (Answered(1, "", Basis("", ""), has_error=True), None, None, None):
        count.find(answered)
    count.begin()
    now[0] = 5.0
    usage = type("Usage", (), {"completion_tokens": 100})
    count.add(type("Answer", (), {"usage": usage}))
    assert count.progress == "lines, 20.0 tokens/s, about 10 s left"
    assert count.text == "2 of 4 lines, 1 with an error; 100 tokens, 20.0 tokens/s"
