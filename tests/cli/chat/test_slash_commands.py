"""The slash commands on a real conversation with a small model."""

from __future__ import annotations

import json
import re

import pytest

from edge_rt.cli.chat.settings import parse_option
from edge_rt.cli.chat.slash_commands import Commands, LeaveChat
from edge_rt.errors import ConfigError, ContextOverflow, EdgeRTError, InputError, StorageError
from edge_rt.package.sampling import SAMPLING_NAMES
from edge_rt.runtime.config import GenerationConfig
from tests.helpers.chats import load_options, make_chat
from tests.helpers.packages import copied, edit_manifest, manifest_setter


@pytest.fixture
def conversation(small_package, tmp_path):
    made = make_chat(small_package, tmp_path, max_tokens=4)
    yield made
    made.close()


@pytest.fixture
def speculating(native_package, tmp_path):
    """A conversation whose model drafts; what its passes cost is kept nowhere."""
    made = make_chat(native_package, tmp_path, max_tokens=8)
    yield made
    made.close()


@pytest.fixture
def commands(conversation):
    return Commands(conversation)


@pytest.fixture
def told(conversation):
    return conversation.terminal._err.getvalue


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/set temp 0.5", "temperature", 0.5),
        ("/set top-k 7", "top_k", 7),
        ("/set n default", "max_tokens", None),
        ("/set n -1", "max_tokens", None),
        ("/set stop END", "stop", ("END",)),
        ('/set stop ["a", "\\n"]', "stop", ("a", "\n")),
        ("/set logit_bias 5=-1 6=2.5", "logit_bias", {5: -1.0, 6: 2.5}),
        ("/set seed 3", "seed", 3),
        ("/set temp default", "temperature", None),
        ("/set repetition_guard on", "repetition_guard", True),
        ("/set repetition-guard default", "repetition_guard", True),
        ("/set repetition_guard off", "repetition_guard", False),
    ],
)
def test_set(line, name, value, commands, conversation):
    commands.run(line)
    assert getattr(conversation.options, name) == value


@pytest.mark.parametrize(
    "line",
    [
        "/set temp -1",
        "/set temp hot",
        "/set top_p 2",
        "/set repetition_guard maybe",
        "/set nothing 1",
        "/set temp",
        "/set stop [",
        "/set logit_bias x",
        "/ctx 0",
        "/ctx 513",
        "/ctx x",
        "/stats maybe",
        "/show nothing",
        "/set spec magic",
        "/set spec reference",
        "/set accept ratio",
        "/save",
        "/clear now",
        "/regen",
        "/nope",
    ],
)
def test_wrong_arguments_change_nothing(line, commands, conversation):
    before = conversation.options, conversation.load, list(conversation.chat.messages)
    with pytest.raises(ConfigError) as refused:
        commands.run(line)
    assert refused.value.numbers
    assert refused.value.action
    assert (conversation.options, conversation.load, conversation.chat.messages) == before


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("/set temprature 1", "Did you mean temperature?"),
        ("/set temperature hot", "Write /set temperature VALUE, or /set temperature default."),
        ("/chta", "Did you mean /"),
    ],
)
def test_a_refusal_says_what_to_type(line, advice, commands):
    with pytest.raises(ConfigError, match=re.escape(advice)) as refused:
        commands.run(line)
    assert "None" not in str(refused.value)


def test_answers_to_commands_are_shown_when_quiet(commands, conversation, told, tmp_path):
    conversation.terminal.quiet = True
    for line in (
        "/help",
        "/show info",
        "/set seed 3",
        "/stats",
        "/system Be brief.",
        f"/save {tmp_path / 'a'}",
        "/undo",
    ):
        before = told()
        commands.run(line)
        assert told() != before, line


def test_help_fits_a_screen_of_80_columns(commands, told):
    commands.run("/help")
    assert max(map(len, told().splitlines())) < 80


def test_facts_are_shown_without_what_there_is_not(commands, told):
    commands.run("/show info")
    rows = dict(line.strip().split(maxsplit=1) for line in told().splitlines())
    assert rows["context"] == "512 tokens"
    assert not {"-", "None", "[]", ""} & set(rows.values())


def test_parse_option_leaves_the_judgement_to_the_config():
    assert parse_option("temperature", "warm") == "warm"


def test_system_undo_clear(commands, conversation):
    commands.run("/system Be brief.")
    conversation.say("one")
    conversation.say("two")
    commands.run("/undo")
    assert [message["role"] for message in conversation.chat.messages] == ["system", "user", "assistant"]
    commands.run("/clear")
    assert conversation.chat.messages == [{"role": "system", "content": "Be brief."}]
    commands.run('/system ""')
    assert conversation.chat.messages == []


def test_read_goes_in_front_of_the_next_message_once(commands, conversation, tmp_path):
    (tmp_path / "note.txt").write_text("facts")
    commands.run(f'/read "{tmp_path / "note.txt"}"')
    conversation.say("why?")
    conversation.say("and?")
    asked = [message["content"] for message in conversation.chat.messages if message["role"] == "user"]
    assert asked == ["facts\n\nwhy?", "and?"]


def test_undo_first_drops_a_text_that_does_not_fit(commands, conversation, tmp_path, told):
    conversation.say("one")
    messages = list(conversation.chat.messages)
    (tmp_path / "huge.txt").write_text("word " * 2000)
    commands.run(f"/read {tmp_path / 'huge.txt'}")
    with pytest.raises(ContextOverflow) as caught:
        conversation.say("what is it?")
    assert "/undo forgets the text of huge.txt" in str(conversation.explain(caught.value))
    commands.run("/show memory")
    assert re.search(r"for the next message +huge\.txt, about [\d ]+ tokens", told())
    commands.run("/undo")
    assert "the text of huge.txt is forgotten" in told()
    assert conversation.chat.messages == messages
    conversation.say("two")
    assert conversation.chat.messages[-2]["content"] == "two"


def test_the_cache_shows_the_rows_that_it_holds(commands, conversation, told):
    conversation.say("one")
    rows, size = conversation.model.kv_held
    assert 0 < rows <= conversation.last.usage.total_tokens
    assert size == conversation.last.memory.kv_bytes == rows * conversation.model.describe()["kv_bytes_per_token"]
    commands.run("/clear")
    commands.run("/show memory")
    assert re.search(r"conversation +0 of", told())
    assert f", {rows} rows held" in told()


def test_advice_keeps_its_letters(conversation):
    commands = Commands(conversation)
    commands.run("/ctx 64")
    with pytest.raises(ContextOverflow) as caught:
        conversation.say("word " * 20_000)
    assert "/undo drops the last exchange, or /ctx N for more (up to 512)." in str(conversation.explain(caught.value))
    assert (caught.value.is_estimate, conversation.explain(caught.value).is_estimate) == (True, True)


def test_an_answer_that_is_cut_names_the_option(conversation, told):
    conversation.say("one")
    assert "[stopped after 4 tokens, see /set max_tokens]" in told()


@pytest.mark.parametrize(("content", "error"), [(None, StorageError), (b"\xff", InputError)])
def test_read_refuses(content, error, commands, tmp_path):
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(error):
        commands.run(f"/read {tmp_path / 'x'}")


def test_save_and_load_bring_back_messages_and_options(commands, conversation, tmp_path, told):
    commands.run("/set logit_bias 5=-1")
    conversation.say("one")
    messages, options = list(conversation.chat.messages), conversation.options
    commands.run(f"/save {tmp_path / 'chat.json'}")
    commands.run("/clear")
    commands.run("/set temp 1")
    commands.run(f"/load {tmp_path / 'chat.json'}")
    assert (conversation.chat.messages, conversation.options) == (messages, options)
    assert "warning" not in told()


def test_load_warns_of_another_package(commands, tmp_path, told):
    path = tmp_path / "chat.json"
    commands.run(f"/save {path}")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"package_id": "0" * 64}))
    commands.run(f"/load {path}")
    assert "warning: the conversation was saved with another package" in told()


def test_what_was_computed_is_saved_and_read_where_that_is_asked_for(speculating, commands, tmp_path):
    native, path = Commands(speculating), tmp_path / "a chat.json"
    speculating.say("The little boat left the harbour. " * 10)
    native.run(f"/save {path} --with-cache")
    told = speculating.terminal._err.getvalue
    assert f"saved to {path}, and what was computed to a chat.json.rows" in told()
    speculating.model.reset()
    native.run(f"/load {path}")
    speculating.say("And then?")
    assert speculating.last.usage.cached_tokens >= 64
    # Of a short conversation nothing is worth a file, and the earlier one's is not left beside it.
    native.run("/clear")
    native.run(f"/save {path} --with-cache")
    assert told().splitlines()[-1] == f"saved to {path}"
    assert not path.with_name("a chat.json.rows").exists()
    with pytest.raises(ConfigError, match=r"portable.* Leave --with-cache out"):
        commands.run(f"/save {tmp_path / 'other.json'} --with-cache")
    with pytest.raises(ConfigError, match="/save FILE --with-cache"):
        commands.run("/save --with-cache")


@pytest.mark.parametrize("answer", [True, False])
def test_another_saved_chat_is_replaced_only_after_a_question(answer, conversation, tmp_path):
    path, asked = tmp_path / "chat.json", []

    def ask(question):
        asked.append(question)
        return answer

    Commands(conversation).run(f"/save {path}")
    before = path.read_text()
    conversation.say("one")
    with pytest.raises(ConfigError, match="holds another saved chat"):
        Commands(conversation).run(f"/save {path}")
    commands = Commands(conversation, ask)
    commands.run(f"/save {path}")
    assert len(asked) == 1
    assert (path.read_text() != before) is answer
    if answer:
        # It is this chat's own file now.
        commands.run(f"/save {path}")
        assert len(asked) == 1


def test_load_with_malformed_options_changes_nothing(commands, conversation, tmp_path):
    path = tmp_path / "chat.json"
    commands.run(f"/save {path}")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"settings": {"temperature": "hot"}}))
    conversation.say("one")
    with pytest.raises(InputError):
        commands.run(f"/load {path}")
    assert len(conversation.chat.messages) == 2


def test_save_keeps_foreign_files(commands, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError):
        commands.run(f"/save {tmp_path / 'thesis.txt'}")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_ctx_keeps_the_conversation(commands, conversation):
    conversation.say("one")
    messages = list(conversation.chat.messages)
    commands.run("/ctx 128")
    assert (conversation.model.context_tokens, conversation.chat.messages) == (128, messages)
    conversation.say("two")


def test_another_device_is_told(commands, conversation, told):
    before = conversation.model.describe()
    gpu = {"device": "cuda", "text": "Orin"}
    commands._tell_changes(before, {**before, "device": gpu})
    commands._tell_changes({**before, "device": gpu}, {**before, "device": gpu})
    commands._tell_changes({**before, "device": gpu}, before)
    assert told() == "device: cuda (Orin) instead of cpu\ndevice: cpu instead of cuda (Orin)\n"


def test_ctx_tells_of_the_memory_only_what_changed(commands, told):
    commands.run("/ctx 64")
    commands.run("/ctx 64")
    assert re.search(r"memory planned: [\d.]+ [MG]iB\n$", told())


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(commands, conversation):
    conversation.say("one")
    with pytest.raises(EdgeRTError):
        commands.run("/model no-such-model")
    conversation.say("two")
    assert len(conversation.chat.messages) == 4


def test_regen_replaces_the_answer(commands, conversation):
    conversation.say("one")
    commands.run("/regen")
    assert len(conversation.chat.messages) == 2


def test_it_shows_what_tokens_are_chosen_with_and_whose_values_these_are(small_package, tmp_path):
    package = copied(small_package, tmp_path)
    edit_manifest(package, manifest_setter("sampling", {"temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.1}))
    made = make_chat(package, tmp_path, options=GenerationConfig(top_p=0.5))
    try:
        Commands(made).run("/set")
        told = made.terminal._err.getvalue()
        Commands(made).run("/set temp 0")
        Commands(made).run("/set")
        greedy = made.terminal._err.getvalue().removeprefix(told)
    finally:
        made.close()
    shown = [" ".join(line.split()) for line in told.splitlines()]
    assert [line for line in shown if line.split()[0] in SAMPLING_NAMES] == [
        "temperature 0.4 (the model's)",
        "top_k 40 (default)",
        "top_p 0.5",
        "min_p 0.05 (default)",
        "repetition_penalty 1.1 (the model's)",
    ]
    assert "repetition_penalty 1 (default)" in " ".join(greedy.split())


@pytest.mark.parametrize("topic", ["", " info", " template", " params", " memory"])
def test_show(topic, commands, told):
    commands.run("/show" + topic)
    assert told().strip()


def test_help_names_every_command(commands, told):
    commands.run("/help")
    assert all(name in told() for name in commands.table)


def test_stats_shows_the_last_answer(commands, conversation, told):
    commands.run("/stats")
    assert "there is no answer yet" in told()
    conversation.say("one")
    commands.run("/stats")
    assert re.search(r"^answer +4 tokens", told(), re.MULTILINE)
    assert "speculation" not in told()
    assert conversation.show_stats is False


@pytest.mark.parametrize("state", ["on", "off"])
def test_stats_on_and_off_are_about_a_line_under_answers(state, commands, conversation, told):
    conversation.show_stats = state == "off"
    commands.run(f"/stats {state}")
    conversation.say("one")
    assert ("first token" in told()) is (state == "on")


def test_the_drafter_can_be_chosen_between_answers(speculating):
    commands, told = Commands(speculating), speculating.terminal._err.getvalue
    modes = []
    for mode in ("recycling", "off", "default"):
        commands.run(f"/set spec {mode}")
        speculating.say("one")
        modes.append(speculating.last.spec and speculating.last.spec.mode)
    assert modes == ["recycling", None, "auto"]
    assert all(f"spec = {mode}\n" in told() for mode in ("recycling", "off", "auto"))
    commands.run("/stats")
    for label in ("speculation  auto: ", "choices ", "drafting ", "drafters     hold "):
        assert f"\n{label}" in told()
    assert "warning" not in told()


def test_a_reference_is_a_file(speculating, tmp_path):
    commands, told = Commands(speculating), speculating.terminal._err.getvalue
    (tmp_path / "a file.txt").write_text("The sea is wide.")
    with pytest.raises(StorageError):
        commands.run("/set reference no-such-file")
    commands.run(f'/set reference "{tmp_path / "a file.txt"}"')
    assert speculating.options.reference == "The sea is wide."
    assert "reference = a text of 16 characters" in told()
    commands.run("/set spec reference")
    assert speculating.say("one").spec.mode == "reference"
    with pytest.raises(ConfigError, match="/set reference FILE, or choose another drafter with /set spec"):
        commands.run("/set reference none")
    with pytest.raises(ConfigError, match="drop it with /set reference none"):
        commands.run("/set spec suffix")
    assert speculating.options.spec == "reference"
    commands.run("/set spec off")
    assert "warning: speculation is off: not used: /set reference." in told()
    commands.run("/set temp 0.5")
    assert told().count("warning") == 1


def test_an_acceptance_rule_is_judged_when_it_is_set(speculating):
    commands, told = Commands(speculating), speculating.terminal._err.getvalue
    with pytest.raises(ConfigError, match="Use /set spec recycling before /set accept ratio"):
        commands.run("/set accept ratio")
    commands.run("/set spec recycling")
    commands.run("/set accept ratio")
    assert told().endswith("accept = ratio\n")
    with pytest.raises(ConfigError, match="/set accept match before another drafter"):
        commands.run("/set spec suffix")
    assert (speculating.options.spec, speculating.options.accept) == ("recycling", "ratio")
    assert speculating.say("one").spec.mode == "recycling"
    commands.run("/show params")
    assert re.search(r"^  accept +ratio$", told(), re.MULTILINE)


def test_load_leaves_who_drafts_as_it_is(speculating, tmp_path):
    commands, path = Commands(speculating), tmp_path / "chat.json"
    commands.run("/set spec ngram")
    commands.run(f"/save {path}")
    settings = json.loads(path.read_text())["settings"]
    assert not {"spec", "reference"} & set(settings)
    (tmp_path / "text").write_text("The sea is wide.")
    commands.run("/set spec auto")
    commands.run(f"/set reference {tmp_path / 'text'}")
    commands.run(f"/load {path}")
    assert (speculating.options.spec, speculating.options.reference) == ("auto", "The sea is wide.")


def test_the_mode_in_force_is_shown(commands, speculating, told):
    Commands(speculating).run("/show info")
    Commands(speculating).run("/show params")
    shown = speculating.terminal._err.getvalue()
    assert re.search(r"^  speculation +auto$", shown, re.MULTILINE)
    assert re.search(r"^  spec +auto$", shown, re.MULTILINE)
    commands.run("/show info")
    assert re.search(r"^  speculation +off \(auto, op profile portable\)$", told(), re.MULTILINE)
    commands.run("/set spec suffix")
    assert told().count("warning: the op profile of this model is portable") == 1
    assert "so with /set spec suffix the text may differ" in told()
    commands.run("/set spec recycling")
    assert "warning: /set spec recycling never drafts with this model" in told()


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye"])
def test_exit(line, commands):
    with pytest.raises(LeaveChat):
        commands.run(line)


def test_a_preset_is_a_model_with_its_settings(native_package, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(
        f'[presets.poet]\nmodel = "{native_package}"\nsystem = "Rhyme."\nctx = 64\nmemory = "8GiB"\n'
        "max_tokens = 3\nsampling = { top_k = 5 }\n"
    )
    conversation = make_chat(native_package, tmp_path, load_options(ctx=128), config=config, max_tokens=4)
    commands = Commands(conversation)
    try:
        conversation.say("Hello")
        budget = conversation.load.memory
        commands.run("/model poet")
        assert (conversation.model.context_tokens, conversation.load.memory) == (64, 8 << 30)
        assert (conversation.options.max_tokens, conversation.options.top_k) == (3, 5)
        assert conversation.options.temperature == 0
        assert [message["role"] for message in conversation.chat.messages] == ["system", "user", "assistant"]
        assert conversation.reference == "poet"
        commands.run(f"/model {native_package}")
        assert conversation.load.memory == budget
    finally:
        conversation.close()


def test_a_chat_of_a_version_without_the_guard_has_it_on(commands, conversation, tmp_path):
    commands.run(f"/save {tmp_path / 'chat.json'}")
    saved = json.loads((tmp_path / "chat.json").read_text())
    del saved["settings"]["repetition_guard"]
    (tmp_path / "old.json").write_text(json.dumps(saved))
    conversation.set_options(conversation.options.with_options(repetition_guard=False))
    commands.run(f"/load {tmp_path / 'old.json'}")
    assert conversation.options.repetition_guard
