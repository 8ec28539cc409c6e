"""Arguments of chat templates on the command line, and what is shown of thoughts."""

from __future__ import annotations

import io
import json

import pytest

from edge_rt.cli.chat.slash_commands import Commands
from edge_rt.cli.options.generation import TemplateFlags
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.stats import AnswerView
from edge_rt.errors import ConfigError
from edge_rt.runtime.results import Event
from tests.helpers.chats import make_chat
from tests.helpers.packages import copied, edit_manifest, replace_file
from tests.runtime.test_template_inputs import TEMPLATE

GREEDY = ("--temp", "0", "-n", "4")


@pytest.fixture(scope="module")
def package(small_package, tmp_path_factory):
    made = copied(small_package, tmp_path_factory.mktemp("thinking"))
    replace_file(made, "chat_template.jinja", TEMPLATE.encode())
    return made


@pytest.fixture
def conversation(package, tmp_path):
    made = make_chat(package, tmp_path, max_tokens=4)
    yield made
    made.close()


class TestFlags:
    def test_values_are_json_or_texts(self):
        given = ["enable_thinking=false", "effort=high", "n=3", "text=a=b", 'tools=[{"name": "clock"}]']
        assert TemplateFlags(given).inputs() == {
            "tools": [{"name": "clock"}],
            "documents": None,
            "template_args": {"enable_thinking": False, "effort": "high", "n": 3, "text": "a=b"},
        }

    def test_without_them(self):
        assert TemplateFlags().inputs() == {"tools": None, "documents": None, "template_args": {}}

    @pytest.mark.parametrize("given", ["enable_thinking", "=1", "no name=1", "tools=7", 'documents=["x"]'])
    def test_malformed(self, given):
        with pytest.raises(ConfigError):
            TemplateFlags([given]).inputs()


class TestGenerate:
    def test_a_model_without_a_template_is_warned_of(self, inline, small_package, tmp_path):
        bare = copied(small_package, tmp_path / "bare")
        edit_manifest(bare, lambda document: document.update(chat_template=None))
        assert "has no chat template" in inline("generate", "-m", bare, "-p", "Hello", *GREEDY).stderr.decode()
        assert "has no chat template" not in inline("generate", "-m", bare, "-p", "a", "--raw", *GREEDY).stderr.decode()

    def test_thoughts_are_no_part_of_stdout(self, inline, package):
        thinking = inline("generate", "-m", package, "-p", "Hello", *GREEDY)
        document = json.loads(inline("generate", "-m", package, "-p", "Hello", *GREEDY, "--json").stdout)
        assert thinking.stdout == b"\n"
        assert document["reasoning"] in thinking.stderr.decode()
        assert document["text"] == ""

    def test_an_argument_turns_them_off(self, inline, package):
        off = ("--template-arg", "enable_thinking=false")
        document = json.loads(inline("generate", "-m", package, "-p", "Hello", *GREEDY, *off, "--json").stdout)
        assert "reasoning" not in document
        assert document["text"]

    def test_events_have_them(self, inline, package):
        lines = inline("generate", "-m", package, "-p", "Hello", *GREEDY, "--json-lines").stdout.splitlines()
        events = [json.loads(line) for line in lines]
        assert "".join(e.get("reasoning", "") for e in events[:-1]) == events[-1]["result"]["reasoning"]

    def test_an_argument_without_effect_is_told(self, inline, package):
        result = inline("generate", "-m", package, "-p", "Hello", *GREEDY, "--template-arg", "thinkin=1")
        assert b"has no argument thinkin; it reads enable_thinking" in result.stderr

    def test_a_name_that_is_taken_is_one_error(self, inline, package):
        result = inline("generate", "-m", package, "-p", "Hello", "--template-arg", "messages=3")
        lines = result.stderr.decode().splitlines()
        assert (result.returncode, [line for line in lines if "messages" in line]) == (2, lines[-1:])
        assert "has an impossible name" in lines[-1]
        assert b"has no argument" not in result.stderr

    def test_not_with_raw(self, inline, package):
        result = inline("generate", "-m", package, "-p", "Hello", "--raw", "--template-arg", "a=1")
        assert result.returncode == 2


class TestChat:
    def test_think(self, conversation):
        commands, told = Commands(conversation), conversation.terminal._err.getvalue
        conversation.say("one")
        assert conversation.last.reasoning
        assert conversation.last.reasoning in told()
        commands.run("/think")
        assert "as the template has them" in told()
        commands.run("/think off")
        conversation.say("two")
        assert conversation.last.reasoning == ""
        commands.run("/think on")
        conversation.say("three")
        assert conversation.last.reasoning
        with pytest.raises(ConfigError, match="on or off"):
            commands.run("/think maybe")

    def test_a_model_that_cannot(self, small_package, tmp_path):
        chat = make_chat(small_package, tmp_path)
        with pytest.raises(ConfigError, match="no switch for thoughts"):
            Commands(chat).run("/think off")
        chat.close()

    def test_another_model_keeps_the_arguments(self, conversation, package):
        Commands(conversation).run("/think off")
        conversation.switch(str(package), conversation.load.but(ctx=64))
        conversation.say("one")
        assert conversation.last.reasoning == ""

    def test_from_the_command_line(self, inline, package):
        off = ("--template-arg", "enable_thinking=false")
        result = inline("chat", "-m", package, *GREEDY, *off, "--json", stdin=b"one\n")
        assert json.loads(result.stdout)["turns"][0]["text"]


def test_thoughts_and_answer_go_to_their_streams():
    out, err = io.StringIO(), io.StringIO()
    view = AnswerView(Terminal(out, err))
    for event in (Event("", (1,), "so"), Event("", (2,), " it is"), Event("7", (3,)), Event(" o'clock", (4,))):
        view.show(event)
    view.end_thoughts()
    assert (out.getvalue(), err.getvalue()) == ("7 o'clock", "so it is\n")
    assert view.wrote
