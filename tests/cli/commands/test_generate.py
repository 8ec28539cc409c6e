from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pexpect
import pytest

from edge_rt.runtime.decode.repetition import LEAST_SHORT_COPIES, LEAST_SHORT_TOKENS
from tests.cli.conftest import ENDLESS, GREEDY_AND_LONG, PROGRAM
from tests.helpers.clock import Told
from tests.helpers.packages import copied, replace_file
from tests.helpers.tool_templates import TOOL_TEMPLATES

GREEDY = ("--temp", "0", "-n", "8")


@pytest.fixture
def ask(inline, small_package):
    return lambda *arguments, stdin=b"": inline("generate", "-m", small_package, *GREEDY, *arguments, stdin=stdin)


def test_json_has_the_result_and_the_model(ask):
    result = ask("-p", "Hello", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 0
    names = [
        "text",
        "token_ids",
        "finish_reason",
        "stop_string",
        "usage",
        "timings",
        "spec",
        "memory",
        "options",
        "model",
    ]
    assert list(document) == names
    assert len(document["token_ids"]) == document["usage"]["completion_tokens"] == 8
    assert document["finish_reason"] == "length"
    assert document["spec"] is None


def test_every_form_of_output_tells_the_same(ask):
    text = json.loads(ask("-p", "Hello", "--json").stdout)["text"]
    lines = [json.loads(line) for line in ask("-p", "Hello", "--json-lines").stdout.splitlines()]
    assert "".join(event["text"] for event in lines[:-1]) == text == lines[-1]["result"]["text"]
    assert ask("-p", "Hello").stdout.decode() == text + "\n"
    assert ask("-p", "Hello", "--no-stream").stdout.decode() == text + "\n"
    assert ask("-p", "Hello", "-q").stderr == b""


def test_stdin_follows_the_prompt_behind_a_blank_line(ask):
    joined = json.loads(ask("-p", "one\n\ntwo", "--json").stdout)
    piped = json.loads(ask("-p", "one", "--json", stdin=b"two\n").stdout)
    assert piped["usage"] == joined["usage"]
    assert piped["token_ids"] == joined["token_ids"]


def test_stdin_alone_is_the_prompt(ask):
    alone = json.loads(ask("--json", stdin=b"one").stdout)
    assert alone["token_ids"] == json.loads(ask("-p", "one", "--json").stdout)["token_ids"]


def test_raw_skips_the_template_and_system_adds_to_it(ask):
    tokens = [
        json.loads(ask("-p", "one", "--json", *more).stdout)["usage"]["prompt_tokens"]
        for more in (("--raw",), (), ("-s", "Be kind."))
    ]
    assert tokens == sorted(set(tokens))


def test_flags_of_formats_are_followed_or_refused_and_never_dropped(ask, tmp_path):
    files = {"a.json": '{"const": [7]}', "a.lark": 'start: "yes"', "bad.json": '{"const": NaN}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    schema, grammar, bad = (tmp_path / name for name in files)
    for flags, text in (
        (("--json-schema", schema), "[7]"),
        (("--grammar", grammar), "yes"),
        (("--regex", "[c]a"), "ca"),
    ):
        assert ask("-p", "x", *flags).stdout.decode().strip() == text
    for flags, said in (
        (("--json-schema", bad), "NaN"),
        (("--json-schema", schema, "--regex", "a"), "one format"),
        (("--regex", ""), "not empty"),
        (("--json-spaces",), "--json-spaces"),
        (("--json-spaces", "--regex", "a"), "--json-spaces"),
    ):
        result = ask("-p", "x", *flags)
        assert (result.returncode, result.stdout) in ((2, b""), (3, b"")), flags
        assert said in result.stderr.decode()


def test_calls_are_printed_as_json(inline, small_package, tmp_path):
    made = copied(small_package, tmp_path)
    replace_file(made, "chat_template.jinja", TOOL_TEMPLATES["Qwen"].encode())
    (tmp_path / "tools.json").write_text('[{"name": "clock", "parameters": {"type": "object", "properties": {}}}]')
    (tmp_path / "bad.json").write_text('{"name": "clock"}')

    def ask(*flags, tools="tools.json"):
        return inline("generate", "Time?", "-m", made, "--tools", tmp_path / tools, *flags)

    call = {"name": "clock", "arguments": {}}
    for flags in ((), ("--prefill", '<tool_call>\n{"name": "clo')):
        assert json.loads(ask("--tool-choice", "clock", *flags).stdout) == call
    assert json.loads(ask("--tool-choice", "clock", "--json").stdout)["tool_calls"] == [call]
    for result, said in (
        (ask("--tool-choice", "cluck"), "'cluck'; the tools are clock"),
        (ask("--tool-choice", "clock", "--json-object"), "exclude each other"),
        (ask("--template-arg", 'tools=[{"name": "a"}]'), "given twice"),
        (ask(tools="bad.json"), "no list of tools"),
        (ask("--raw"), "takes no --tools"),
    ):
        assert (result.returncode, result.stdout) == (2, b"")
        assert said in result.stderr.decode()


def test_stats_stand_on_stderr(ask):
    result = ask("-p", "Hello", "--stats")
    assert "first token" in result.stderr.decode()
    assert "first token" not in result.stdout.decode()


@pytest.mark.parametrize(
    ("stdin", "code", "kind", "said"),
    [
        (b"ab\xff\xfe", 3, "InputError", "Byte 2 is 0xff"),
        (b"\x00\x01\x80", 3, "InputError", "Byte 2 is 0x80"),
        (b"word " * 2_000_000, 3, "ContextOverflow", "> context 512"),
        (b"", 2, "ConfigError", "standard input"),
        (b" \n", 2, "ConfigError", "standard input"),
    ],
)
def test_odd_stdin(stdin, code, kind, said, ask):
    result = ask("--json", stdin=stdin)
    error = json.loads(result.stdout)["error"]
    assert (result.returncode, error["type"]) == (code, kind)
    assert said in error["numbers"]


def test_an_answer_that_the_context_cuts_is_warned_about(inline, small_package):
    arguments = ("generate", "-m", small_package, "-p", "Hello", "-c", "64", *ENDLESS)
    result = inline(*arguments, "--json")
    assert json.loads(result.stdout)["finish_reason"] == "context_full"
    assert b"warning: the context is full (64 of 64 tokens)" in result.stderr
    assert b"--ctx N allows more (up to 512)" in result.stderr


def test_an_answer_that_goes_round_in_circles_is_ended_and_warned_about(inline, small_package):
    # One token is always the likeliest.
    arguments = ("generate", "-m", small_package, "-p", "Hello", *GREEDY_AND_LONG, "--logit-bias", "40=1000", "--json")
    result = inline(*arguments)
    document = json.loads(result.stdout)
    assert (document["finish_reason"], result.returncode) == ("repetition", 0)
    assert document["usage"]["completion_tokens"] == 1 + LEAST_SHORT_TOKENS + LEAST_SHORT_COPIES
    assert (
        b"warning: the answer repeated itself or counted without end, and was stopped; --no-repetition-guard"
        in result.stderr
    )
    assert json.loads(inline(*arguments, "--no-repetition-guard").stdout)["finish_reason"] == "context_full"


def test_json_tells_what_tokens_were_chosen_with(ask):
    options = json.loads(ask("-p", "Hello", "--json", "--top-k", "7").stdout)["options"]
    assert (options["temperature"], options["top_k"], options["top_p"], options["min_p"]) == (0, 7, 0.95, 0.05)
    assert (options["repetition_penalty"], options["repetition_guard"]) == (1.0, True)


def test_one_token_has_no_speed(inline, small_package):
    result = inline("generate", "-m", small_package, "-p", "Hello", "-n", "1", "--stats")
    assert "answer 1 token · " in result.stderr.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_named(start, small_package):
    with Path("/dev/full").open("wb") as full:
        process = start("generate", "-m", small_package, "-p", "x", *GREEDY, stdout=full)
        told = process.communicate()[1].decode()
    assert told.startswith("error: Standard output could not be written. No space left")
    assert (process.returncode, told.count("\n")) == (6, 1)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_closed_stdout_is_an_error(more, start, small_package):
    process = start("generate", "-m", small_package, "-p", "x", *GREEDY, *more, stdout=None, preexec_fn=_close_stdout)
    told = process.communicate()[1].decode()
    assert (process.returncode, told.splitlines()[0][:44]) == (6, "error: Standard output could not be written.")
    assert "Traceback" not in told


def _close_stdout():
    os.close(1)


def test_what_follows_a_half_answer_has_its_own_line(spawn, slow_package):
    child = spawn("generate", "-m", slow_package, "-p", "Hello", "-n", "5000", *ENDLESS)
    # Longer than a line about the prompt, which may come first.
    child.expect(r"[^\x1b]{80}")
    child.kill(signal.SIGTERM)
    child.expect(r"\n(\x1b\[K|\r)*stopped")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 143


def test_a_closed_stdin_is_an_empty_one(cli_env, small_package, start):
    process = start("generate", "-m", small_package, "-p", "x", *GREEDY, stdin=None, preexec_fn=_close_stdin)
    assert process.communicate()[1] == b""
    assert process.returncode == 0


def _close_stdin():
    os.close(0)


def test_an_open_stdin_is_explained(start, small_package):
    process = start("generate", "-m", small_package, "-p", "x", stdin=subprocess.PIPE)
    assert b"waiting for the end of standard input" in process.stderr.readline()


def test_ctrl_c_in_decode_keeps_the_partial_answer(start, slow_package):
    process = start("generate", "-m", slow_package, "-p", "Hello", "--json-lines", "-n", "5000", *ENDLESS)
    for _ in range(5):
        process.stdout.readline()
    told = Told(process.pid)
    process.send_signal(signal.SIGINT)
    lines = process.communicate()[0].splitlines()
    told.must_be_done()
    assert process.returncode == 130
    result = json.loads(lines[-1])["result"]
    assert result["finish_reason"] == "cancelled"
    assert len(result["token_ids"]) >= 5


def test_ctrl_c_in_prefill(spawn, slow_package):
    child = spawn("generate", "-m", slow_package, "--json", "-p", "the sea is wide " * 850, *ENDLESS)
    child.expect("reading the prompt")
    told = Told(child.pid)
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()
    told.must_be_done()
    assert child.exitstatus == 130
    document = json.loads(child.before[child.before.index("{") :])
    assert (document["finish_reason"], document["token_ids"]) == ("cancelled", [])


BEGINS = "import sys; from edge_rt.cli.main import main; print('main', file=sys.stderr, flush=True); sys.exit(main())"


@pytest.mark.parametrize("after", [0.05, 0.2, 0.4])
def test_ctrl_c_early_on(after, start, slow_package):
    asked = ("generate", "-m", slow_package, "-p", "Hello", "--json", "-n", "5000", *ENDLESS)
    process = start(*asked, program=[PROGRAM[0], "-c", BEGINS])
    assert process.stderr.readline() == b"main\n"
    # Different moments of what comes before the first token, which ones does not matter: nothing is waited for.
    time.sleep(after)
    told = Told(process.pid)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    told.must_be_done()
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    json.loads(stdout)


def test_ctrl_c_while_a_load_blocks(cli_env, small_package):
    code = (
        "import sys, time, edge_rt.runtime.model as engine\n"
        "def load(*a, **k):\n    print('loading', file=sys.stderr, flush=True)\n    time.sleep(30)\n"
        "engine.Model = load\nfrom edge_rt.cli.main import main\nsys.exit(main())"
    )
    command = [PROGRAM[0], "-c", code, "generate", "-m", small_package, "-p", "x", "--json"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=cli_env, **pipes) as process:
        assert process.stderr.readline() == b"loading\n"
        told = Told(process.pid)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate()
    told.must_be_done()
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["type"] == "Cancelled"
