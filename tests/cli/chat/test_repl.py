"""The chat at a pseudo-terminal."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import termios
import time
from types import SimpleNamespace

import pexpect
import pytest
from prompt_toolkit.history import InMemoryHistory

from edge_rt.cli.chat.repl import make_session
from tests.cli.conftest import ENDLESS, PROGRAM
from tests.helpers.clock import Told

PROMPT = re.escape(">>> ")
STATS = r"prompt ([\d ]+) tokens?, [\d ]+ tok/s[^a]+ first token [\d.]+ s[^a]+answer ([\d ]+) tokens?[^k]+k?[^k]+peak"
SLOW_LOAD = """
import sys, time
import edge_rt.runtime.model
class Slow(edge_rt.runtime.model.Model):
    def __init__(self, package, options, plan):
        if plan is not None and plan.choice.ctx == 4096:
            print("LOADING", file=sys.stderr, flush=True)
            time.sleep(1.5)
        super().__init__(package, options, plan)
edge_rt.runtime.model.Model = Slow
from edge_rt.cli.main import main
sys.exit(main())
"""
"""Loads with 4096 tokens of context take a while, and say so."""
CTRL_C, CTRL_D, CTRL_G, TAB = "\x03", "\x04", "\x07", "\t"


@pytest.fixture
def chat(spawn, small_package):
    """Start a chat whose answers have a few tokens, and wait for its prompt."""

    def begin(*arguments, package=small_package, **options):
        child = spawn("chat", package, "--stats", "--temp", "0", "-n", "4", *arguments, **options)
        child.expect("type /help")
        child.expect(PROMPT)
        return child

    return begin


@pytest.fixture
def endless(spawn, slow_package):
    """Start a chat whose answers do not end by themselves."""

    def begin(*arguments):
        child = spawn("chat", slow_package, "--stats", *ENDLESS, *arguments)
        child.expect(PROMPT)
        return child

    return begin


def see_keyboard_taken(child):
    """Wait until keys are read during an answer: one by one, and Ctrl-C is a signal."""
    for _ in range(6000):
        flags = termios.tcgetattr(child.child_fd)[3]
        if flags & termios.ISIG and not flags & termios.ICANON:
            return
        time.sleep(0.01)
    raise AssertionError("the keyboard was not taken")


def see_answer(child):
    """Wait until some of an answer is shown; lines about the prompt, which may come first, are shorter."""
    see_keyboard_taken(child)
    child.expect(r"[^\x1b]{80}")


def say(child, text):
    child.sendline(text)
    child.expect(STATS)
    figures = tuple(int(group.replace(" ", "")) for group in child.match.groups())
    child.expect(PROMPT)
    return figures


def test_an_answer_has_a_line_of_figures_and_the_next_turn_computes_only_what_is_new(chat):
    child = chat()
    first = say(child, "Hello there, how are you today?")
    second = say(child, "Hi")
    assert first[1] == second[1] == 4
    assert second[0] < first[0]
    child.send(CTRL_D)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_the_banner_has_at_most_six_lines(spawn, small_package):
    child = spawn("chat", "-m", small_package)
    child.expect("type /help for commands, Ctrl-D to leave")
    assert len(child.before.strip().splitlines()) <= 5


def test_ctrl_c_stops_an_answer_and_the_next_equals_that_of_an_uninterrupted_session(
    endless, inline, slow_package, tmp_path
):
    child = endless()
    child.sendline("Tell me a story")
    see_answer(child)
    told = Told(child.pid)
    child.send(CTRL_C)
    child.expect(re.escape("[interrupted"))
    told.must_be_done()
    child.expect(STATS)
    length = int(child.match[2].replace(" ", ""))
    child.expect(PROMPT)
    child.sendline("/set max_tokens 12")
    say(child, "Go on")
    child.sendline(f"/save {tmp_path / 'chat.json'}")
    child.expect("saved to")
    lines = [f"/set max_tokens {length}", "Tell me a story", "/set max_tokens 12", "Go on"]
    result = inline("chat", "-m", slow_package, *ENDLESS, "--json", stdin="\n".join(lines).encode())
    uninterrupted = json.loads(result.stdout)["messages"]
    messages = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert messages[1].pop("interrupted") is True
    assert messages == uninterrupted


def test_ctrl_c_before_the_first_token_drops_the_message(endless, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("the sea is wide " * 850)
    child = endless()
    child.sendline(f"/read {text}")
    child.expect("in front of your next message")
    child.expect(PROMPT)
    child.sendline("What is it about?")
    child.expect("reading the prompt")
    told = Told(child.pid)
    child.send(CTRL_C)
    child.expect("stopped before the first token")
    told.must_be_done()
    child.expect(PROMPT)
    child.sendline("/show memory")
    child.expect(r"conversation +0 of")


def saved_messages(child, path):
    child.sendline(f"/save {path}")
    child.expect("saved to")
    child.expect(PROMPT)
    return json.loads(path.read_text())["messages"]


@pytest.mark.parametrize("stage", ["load", "export"])
def test_ctrl_c_while_the_model_changes_keeps_model_and_conversation(stage, spawn, slow_package, slow_gguf, tmp_path):
    arguments = ("-m", slow_package, "--temp", "0", "-n", "4", "--store", tmp_path / "store")
    child = spawn("chat", "--stats", *arguments, program=[PROGRAM[0], "-c", SLOW_LOAD])
    child.expect(PROMPT)
    say(child, "My name is Ada.")
    before = saved_messages(child, tmp_path / "before.json")
    if stage == "export":
        child.sendline(f"/model {slow_gguf}")
        child.expect("weights")
    else:
        child.sendline("/ctx 4096")
        child.expect("LOADING")
    told = Told(child.pid)
    child.send(CTRL_C)
    child.expect("stopped")
    told.must_be_done()
    child.expect(PROMPT)
    child.sendline("/show info")
    child.expect(r"context +8[ ,]?192 tokens")
    child.expect(PROMPT)
    assert saved_messages(child, tmp_path / "after.json") == before
    say(child, "What is my name?")
    child.send(CTRL_D)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert not (tmp_path / "store" / "packages").exists() or not list((tmp_path / "store" / "packages").glob("[!.]*"))


def test_a_second_ctrl_c_while_the_model_changes_leaves(spawn, small_package):
    child = spawn("chat", "-m", small_package, program=[PROGRAM[0], "-c", SLOW_LOAD.replace("4096", "256")])
    child.expect(PROMPT)
    child.sendline("/ctx 256")
    child.expect("LOADING")
    child.send(CTRL_C)
    child.expect("stopping")
    told = Told(child.pid)
    child.send(CTRL_C)
    child.expect(pexpect.EOF)
    child.wait()
    told.must_be_done()
    assert child.exitstatus == 130


def test_ctrl_c_at_an_empty_prompt(chat):
    child = chat()
    child.send("half a line")
    child.expect("half a line")
    child.send(CTRL_C)
    child.send(CTRL_C)
    child.expect("Use Ctrl-D or /exit")
    child.expect(PROMPT)
    # Within a second of each other; on a busy machine the first pairs may come too late for that.
    for _ in range(20):
        child.send(CTRL_C + CTRL_C)
        if child.expect([pexpect.EOF, "Use Ctrl-D or /exit"]) == 0:
            break
        child.expect(PROMPT)
    child.wait()
    assert child.exitstatus == 130


SPARED = re.escape("\x1b[1;49r")
"""The last line of the screen is set apart."""
WHOLE = re.escape("\x1b[r")
"""It is not any longer."""
PROMPT_ENDS = re.escape("\x1b[?2004l")
"""A prompt has read its entry."""


def test_what_is_typed_during_an_answer_is_shown_and_goes_into_the_next_prompt(endless, tmp_path):
    child = endless()
    child.sendline("Tell me a story")
    see_answer(child)
    child.send("half a lime\x7f\x7fne")
    child.expect(SPARED)
    child.expect(re.escape(">>> half a line"))
    child.send(CTRL_C)
    child.expect(WHOLE)
    child.expect(re.escape("[interrupted"))
    child.expect(STATS)
    child.expect(PROMPT)
    child.expect("half a line")
    child.send(CTRL_C)
    assert [message["role"] for message in saved_messages(child, tmp_path / "chat.json")] == ["user", "assistant"]


def test_lines_that_are_complete_become_the_next_messages(endless, tmp_path):
    child = endless()
    child.sendline("/set max_tokens 400")
    child.expect(PROMPT)
    child.sendline("one")
    see_keyboard_taken(child)
    child.send("/set max_tokens 3\rtwo\rthree\r")
    child.expect(re.escape("two ⏎ three ⏎"))
    for _ in range(3):
        child.expect(STATS)
    child.expect(PROMPT)
    messages = saved_messages(child, tmp_path / "chat.json")
    assert [message["content"] for message in messages if message["role"] == "user"] == ["one", "two", "three"]


def test_a_screen_that_cannot_be_drawn_on_keeps_what_is_typed(spawn, slow_package):
    child = spawn("chat", "-m", slow_package, "--stats", *ENDLESS, env={"TERM": "dumb"})
    child.expect(PROMPT)
    child.sendline("Tell me a story")
    see_answer(child)
    child.send("half a line")
    # It is read before the next of the answer is shown.
    see_answer(child)
    see_answer(child)
    child.send(CTRL_C)
    child.expect(STATS)
    assert "\x1b[1;49r" not in child.before
    child.expect("half a line")


def test_ctrl_d_during_an_answer_leaves_after_it(endless):
    child = endless("-n", "60")
    child.sendline("Tell me a story")
    see_keyboard_taken(child)
    child.send(CTRL_D)
    child.expect(STATS)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_sigterm_leaves_with_143(chat):
    child = chat()
    child.kill(15)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 143


def test_unknown_commands_are_errors_and_two_slashes_are_text(chat):
    child = chat()
    child.sendline("/hlep")
    child.expect(re.escape("error: There is no command '/hlep'. Did you mean /help?"))
    child.expect(PROMPT)
    say(child, "//etc is a folder")
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_several_lines_are_one_message(chat, tmp_path):
    child = chat()
    # Between quotes, behind a backslash, with Alt-Enter, and pasted.
    for typed in ('"""\rone\rtwo\r"""\r', "one\\\rtwo\r", "one\x1b\rtwo\r", "\x1b[200~one\ntwo\x1b[201~\r"):
        child.send(typed)
        child.expect(STATS)
        child.expect(PROMPT)
    saved = tmp_path / "chat.json"
    child.sendline(f"/save {saved}")
    child.expect("saved to")
    said = [message["content"] for message in json.loads(saved.read_text())["messages"] if message["role"] == "user"]
    assert said == ["one\ntwo"] * 4
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_ctrl_g_opens_the_editor(chat, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "written elsewhere" > "$1"\n')
    editor.chmod(0o755)
    child = chat(env={"EDITOR": str(editor), "VISUAL": str(editor)})
    child.send(CTRL_G)
    child.expect("written elsewhere")
    child.send("\r")
    child.expect(STATS)


def test_tab_completes_commands_and_files(chat, tmp_path):
    (tmp_path / "a-long-file-name.txt").write_text("content")
    child = chat()
    child.send("/rea" + TAB)
    child.send(f" {tmp_path}/a-lo" + TAB)
    child.send("\r")
    child.expect("read a-long-file-name.txt")


@pytest.mark.parametrize("arguments", [(), ("--no-history",)])
def test_history_is_private_and_optional(arguments, chat, cli_env, tmp_path):
    child = chat(*arguments)
    say(child, "remember me")
    history = tmp_path / "home" / "state" / "edge-rt" / "history"
    if arguments:
        assert not history.exists()
    else:
        assert "remember me" in history.read_text()
        assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_full_context_is_explained_before_generating(chat):
    child = chat("--ctx", "64")
    child.sendline("word " * 60)
    child.expect(r"Prompt \d+ tokens \+ 4 reserved > context 64\. /clear starts over")
    child.expect(PROMPT)
    child.sendline("/ctx 512")
    child.expect("the context has 512 tokens")
    child.expect(PROMPT)
    say(child, "word " * 60)


def test_hostile_metadata_cannot_reach_the_terminal(spawn, tmp_path):
    from edge_rt.export import export_model
    from tests.helpers.gguf_factory import write_llama_gguf

    gguf = tmp_path / "hostile.gguf"
    write_llama_gguf(gguf, extra_metadata={"general.name": "\x1b]0;owned\x07"})
    export_model(gguf, tmp_path / "hostile")
    child = spawn("inspect", tmp_path / "hostile")
    child.expect(pexpect.EOF)
    assert "\x1b]0;owned" not in child.before
    assert "␛]0;owned␇" in child.before


@pytest.mark.parametrize(
    ("env", "arguments", "is_red"),
    [({}, (), True), ({"NO_COLOR": "1"}, (), False), ({"TERM": "dumb"}, (), False), ({}, ("--no-color",), False)],
)
def test_errors_are_red_only_where_colours_are_wanted(env, arguments, is_red, spawn):
    child = spawn("inspect", "no-such-model", *arguments, env=env)
    child.expect(pexpect.EOF)
    assert "error: There is no model" in child.before
    assert ("\x1b[31m" in child.before) is is_red


def test_edits_that_can_be_undone_take_little_memory():
    session = make_session(SimpleNamespace(no_color=True), SimpleNamespace(table={}), InMemoryHistory(), list)
    buffer = session.default_buffer

    async def type_and_undo():
        for length in range(1, 151):
            buffer.save_to_undo_stack()
            buffer.text = "x" * length
        assert sum(len(text) for text, _ in buffer._undo_stack) < 150 * 65
        buffer.undo()

    asyncio.run(type_and_undo())
    assert len(buffer.text) == 149
