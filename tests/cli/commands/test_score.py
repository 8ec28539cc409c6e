"""``edge-rt score``: a text, a file of texts, and going on with one."""

from __future__ import annotations

import io
import json

import pytest

from edge_rt.cli.commands.score import ScoreProgress
from edge_rt.cli.render.console import Terminal, number

TEXTS = ["The little boat left the harbour at dawn.", "The sea was calm.", "The sea was calm."]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_a_text_and_standard_input_say_the_same(inline, small_package):
    document = json.loads(inline("score", TEXTS[0], "-m", small_package, "--json").stdout)
    assert document["tokens"] == len(document["logprobs"]) == len(document["token_ids"]) - 1
    piped = inline("score", "-m", small_package, stdin=TEXTS[0].encode()).stdout.decode()
    assert piped.startswith(f"{document['tokens']} tokens, log probability {document['log_probability']:.4f}")


def test_a_text_that_takes_long_shows_its_tokens():
    err, now = io.StringIO(), [0.0]
    progress = ScoreProgress(Terminal(io.StringIO(), err), 2, clock=lambda: now[0])
    progress.tokens(10, 5000)
    assert err.getvalue() == ""
    now[0] = 5.0
    progress.tokens(1500, 5000)
    assert f"0/2 texts; {number(1500)} of {number(5000)} tokens of the next one" in err.getvalue()


def test_a_text_of_a_file_that_is_too_short_is_left_out(inline, small_package, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text(f"x\n{TEXTS[0]}\n")
    result = inline("score", "-m", small_package, "--texts", path, "--json")
    assert [line["text"] for line in json.loads(result.stdout)["texts"]] == [1]
    assert b"text 1 is left out" in result.stderr
    path.write_text("x\ny\n")
    assert b"No text has a score" in inline("score", "-m", small_package, "--texts", path).stderr


def test_a_file_of_texts_is_gone_on_with(inline, small_package, texts, tmp_path):
    state = tmp_path / "state"
    arguments = ("score", "-m", small_package, "--texts", texts, "--state", state)
    first = inline(*arguments, "--limit", "1", "--json")
    assert [line["text"] for line in json.loads(first.stdout)["texts"]] == [0]
    whole = json.loads(inline(*arguments, "--json").stdout)
    assert len(state.read_text().splitlines()) == 1 + len(set(TEXTS))
    assert whole["texts"][1]["perplexity"] == whole["texts"][2]["perplexity"]
    assert whole["tokens"] == sum(line["tokens"] for line in whole["texts"])
    again = inline(*arguments)
    assert b"3 of 3 texts are scored already" in again.stderr
    other = inline(*arguments, "--ctx", "64")
    assert b"another scoring" in other.stderr
