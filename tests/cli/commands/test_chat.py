"""Chats driven by a pipe."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def talk(inline, small_package):
    return lambda stdin, *more: inline("chat", "-m", small_package, "--temp", "0", "-n", "4", *more, stdin=stdin)


def test_every_line_is_a_message_of_one_conversation(talk):
    document = json.loads(talk(b"one\n\ntwo\n", "--json").stdout)
    roles = [message["role"] for message in document["messages"]]
    assert roles == ["user", "assistant"] * 2
    assert document["turns"][1]["usage"]["cached_tokens"] > 0
    plain = talk(b"one\ntwo")
    assert plain.stdout.decode() == "".join(turn["text"] + "\n" for turn in document["turns"])


def test_commands_and_several_lines_work_too(talk):
    stdin = b'/system Be kind.\n"""\na\nb\n"""\n//x\n/exit\nnever said\n'
    messages = json.loads(talk(stdin, "--json").stdout)["messages"]
    assert [message["content"] for message in messages[::2]] == [
        "Be kind.",
        messages[2]["content"],
        messages[4]["content"],
    ]
    assert [message["content"] for message in messages if message["role"] == "user"] == ["a\nb", "/x"]


def test_a_prompt_that_does_not_fit_is_refused_with_what_can_be_typed(talk):
    error = json.loads(talk(b"/ctx 64\n" + b"word " * 600 + b"\n", "--json").stdout)["error"]
    assert (error["type"], error["exit_code"]) == ("ContextOverflow", 3)
    assert error["action"] == "/clear starts over, /undo drops the last exchange, or /ctx N for more (up to 512)."


@pytest.mark.parametrize(
    ("stdin", "code"), [(b"one\n/nope\ntwo\n", 2), (b"word " * 600 + b"\n", 3), (b"one\n\xff\n", 3), (b"", 0)]
)
def test_the_first_error_ends_the_chat(stdin, code, talk):
    result = talk(stdin, "--json")
    assert result.returncode == code
    assert ("error" in json.loads(result.stdout)) is (code != 0)
