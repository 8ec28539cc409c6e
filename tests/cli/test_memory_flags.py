"""``--memory`` on the commands that load a model, and what a chat says of its memory."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import pytest

from edge_rt.cli.chat.slash_commands import Commands
from edge_rt.cli.commands.export import _exceeded
from edge_rt.errors import ConfigError
from tests.helpers.chats import load_options, make_chat

MIB = 1 << 20
GENERATE = ("-p", "Hello", "-n", "4", "--temp", "0")
COMMANDS = [
    ("generate", *GENERATE),
    ("bench", "--pp", "8", "--tg", "4", "-d", "8", "-r", "1"),
    ("verify", "-n", "4", "--limit", "1"),
    ("chat",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_budget_that_is_too_small_is_exit_code_4(inline, native_package, command):
    verb, *rest = command
    result = inline(verb, "-m", native_package, *rest, "--memory", "5MiB", stdin=b"hello\n")
    assert result.returncode == 4
    told = result.stderr.decode()
    assert "does not fit the memory" in told
    assert "budget is 5.0 MiB" in told
    assert result.stdout == b""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_is_no_size_is_a_usage_error(inline, native_package, command):
    verb, *rest = command
    result = inline(verb, "-m", native_package, *rest, "--memory", "plenty", stdin=b"hello\n")
    assert result.returncode == 2
    assert "'plenty'" in result.stderr.decode()


def test_a_model_that_has_to_be_exported_first_is_not_where_that_exceeds_the_budget(inline, small_gguf, tmp_path):
    flags = ("-m", small_gguf, "--store", tmp_path, "--memory", "100MiB")
    result = inline("generate", *flags, *GENERATE)
    assert result.returncode == 4
    assert f"edge-rt pull {small_gguf}" in result.stderr.decode()
    assert list((tmp_path / "packages").iterdir()) == []


def test_a_budget_in_which_a_recipe_is_never_exported_is_refused_before_anything_is_fetched(inline, tmp_path):
    result = inline("generate", "--store", tmp_path / "store", "--memory", "300MiB", *GENERATE)
    assert result.returncode == 4
    assert "needs more than 309.0 MiB; the budget is 300.0 MiB" in result.stderr.decode()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("taken", "budget", "told"),
    [
        (400, None, ()),
        (401, None, ("401.0 MiB of memory, more than was predicted (400.0 MiB)",)),
        (401, 450, ("401.0 MiB of memory, more than was predicted (400.0 MiB)",)),
        (451, 450, ("451.0 MiB of memory, more than --memory allows (450.0 MiB)",)),
    ],
)
def test_an_export_that_takes_more_than_was_said_is_warned_of(taken, budget, told):
    report = SimpleNamespace(peak_bytes=taken * MIB, predicted_peak_bytes=400 * MIB)
    found = _exceeded(report, None if budget is None else budget * MIB)
    assert len(found) == len(told)
    assert all(text in warning for text, warning in zip(told, found, strict=True))


def test_a_setting_that_is_offered_works_when_it_is_typed(cli, native_package):
    refused = cli("generate", "-m", native_package, *GENERATE, "--ctx", "400", "--memory", "20MiB")
    assert refused.returncode == 4
    action = refused.stderr.decode().partition("Try ")[2]
    flags = shlex.split(" ".join(action.partition(" (needs")[0].split()))
    assert flags[0] == "--memory"
    typed = cli("generate", "-m", native_package, *GENERATE, *flags, "--json")
    assert typed.returncode == 0, typed.stderr
    memory = json.loads(typed.stdout)["memory"]
    assert memory["peak_bytes"] <= memory["budget_bytes"]


def test_json_has_plan_and_budget(inline, native_package):
    result = inline("generate", "-m", native_package, *GENERATE, "--memory", "3GiB", "--json")
    document = json.loads(result.stdout)
    planned = document["model"]["memory"]
    assert planned["budget_bytes"] == document["memory"]["budget_bytes"] == 3 << 30
    assert planned["planned_bytes"] == sum(planned["terms"].values()) == document["memory"]["planned_bytes"]


def test_the_line_under_an_answer_tells_the_peak_of_the_budget(inline, native_package):
    result = inline("generate", "-m", native_package, *GENERATE, "--memory", "3GiB", "--stats")
    assert " of 3.00 GiB\n" in result.stderr.decode()


def test_the_configuration_has_a_budget_and_the_flag_goes_before_it(inline, native_package, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('memory = "5MiB"\n')
    command = ("generate", "-m", native_package, *GENERATE, "--config", config)
    assert inline(*command).returncode == 4
    assert inline(*command, "--memory", "3GiB").returncode == 0
    config.write_text('memory = "lots"\n')
    failed = inline(*command)
    assert (failed.returncode, f"{config}: the value of 'memory'" in failed.stderr.decode()) == (2, True)


def test_both_names_of_the_cache_format(inline, native_package):
    command = ("generate", "-m", native_package, *GENERATE, "--json")
    for flag in ("--kv", "--kv-type"):
        assert json.loads(inline(*command, flag, "int8").stdout)["model"]["kv_format"] == "int8"
    chosen = json.loads(inline(*command, "--kv", "auto").stdout)["model"]["kv_format"]
    assert chosen in json.loads(inline("inspect", native_package, "--json").stdout)["kv_formats"]


def test_an_export_that_needs_more_writes_nothing(inline, small_gguf, tmp_path):
    command = ("export", "-m", small_gguf, "--out", tmp_path / "out")
    result = inline(*command, "--memory", "1MiB")
    assert result.returncode == 4
    assert "The export does not fit" in result.stderr.decode()
    assert not (tmp_path / "out").exists()
    assert inline(*command, "--memory", "3GiB").returncode == 0


@pytest.fixture
def conversation(native_package, tmp_path):
    made = make_chat(native_package, tmp_path, load_options(memory="3GiB"), answers="off")
    yield made
    made.close()


def test_a_chat_says_what_it_plans_to_take(conversation):
    planned = conversation.model.plan.total_bytes
    assert conversation.banner()[2].endswith(f"used now, at most {planned / 2**30:.2f} of 3.00 GiB planned")
    assert len(conversation.banner()) <= 6


def test_show_memory_has_every_term(conversation):
    Commands(conversation).run("/show memory")
    told = conversation.terminal._err.getvalue()
    for term in conversation.model.plan.terms:
        assert f"  {term.name} " in told
        assert term.text in told
    assert "planned" in told
    assert told.count(" of 3.00") == 2


def test_ctx_plans_anew_in_the_same_budget_and_says_what_changed(conversation):
    before = conversation.model.plan
    Commands(conversation).run("/ctx 64")
    after = conversation.model.plan
    assert (before.choice.ctx, after.choice.ctx) == (512, 64)
    assert after.budget_bytes == before.budget_bytes
    assert after.total_bytes - after.terms[0].bytes < before.total_bytes - before.terms[0].bytes
    told = conversation.terminal._err.getvalue()
    assert "the context has 64 tokens" in told
    assert "memory planned: " in told
    assert "the budget is 3.00 GiB" in told


def test_a_model_that_does_not_fit_leaves_the_one_before(conversation):
    same = str(conversation.model.package.path)
    with pytest.raises(ConfigError):
        conversation.switch(same, conversation.load.but(memory="nothing"))
    assert conversation.say("hello").usage.completion_tokens > 0
