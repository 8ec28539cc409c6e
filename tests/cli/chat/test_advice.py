"""What a chat advises where memory is short can be typed there."""

from __future__ import annotations

import shlex

import pytest

from edge_rt.cli.chat.advice import WAYS, flags_of_a_chat, in_words_of_a_chat, setting_in_chat
from edge_rt.cli.chat.slash_commands import Commands
from edge_rt.cli.loading import plan_model
from edge_rt.errors import ConfigError, EncodingBudgetExceeded, MemoryBudgetExceeded, ReferenceBudgetExceeded
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.system.process_memory import own_bytes
from tests.helpers.chats import load_options, make_chat

LOAD = LoadOptions(ctx=8192, memory=300 << 20, kv="int8", spec="suffix", draft_max=8)
KEPT = ("--memory", "300MiB", "--kv-type", "int8", "--spec", "suffix", "--draft-max", "8")


def test_another_context_is_a_command_where_nothing_else_differs():
    assert setting_in_chat((*KEPT, "--ctx", "2048"), "some model", LOAD, is_same_model=True) == "/ctx 2048"
    # Of the configuration file: on a GPU the setting names it, on the CPU it has none.
    usual = LOAD.but(usual_device_memory=4 << 30)
    for more in ((), ("--device-memory", "4GiB")):
        assert setting_in_chat((*KEPT, *more, "--ctx", "2048"), "some model", usual, is_same_model=True) == "/ctx 2048"


@pytest.mark.parametrize(
    ("setting", "is_same_model"),
    [
        ((*KEPT, "--ctx", "2048"), False),
        (KEPT, True),
        ((*KEPT[2:], "--memory", "301MiB", "--ctx", "2048"), True),
        ((*KEPT[:2], "--ctx", "2048"), True),
    ],
    ids=["another model", "no context", "more memory", "another cache"],
)
def test_anything_else_is_a_new_chat(setting, is_same_model):
    told = setting_in_chat(setting, "some model", LOAD, is_same_model=is_same_model)
    assert told.startswith("/exit and edge-rt chat -m 'some model' ")
    assert shlex.split(told)[6:] == list(setting)


def test_errors_keep_what_they_say_but_for_the_advice():
    with pytest.raises(MemoryBudgetExceeded) as caught, in_words_of_a_chat():
        raise MemoryBudgetExceeded("No room.", "5 of 4.", "Load it with --spec recycling.")
    assert (caught.value.what, caught.value.numbers, caught.value.action) == ("No room.", "5 of 4.", WAYS)
    with (
        pytest.raises(ConfigError, match=r"Got x\. Leave with /exit") as refused,
        flags_of_a_chat("m"),
    ):
        raise ConfigError("No such format.", "Got x.", "Choose another.")
    assert refused.value.action.endswith("edge-rt chat -m m")


def test_a_text_that_no_budget_limits_is_not_advised_a_budget():
    with pytest.raises(EncodingBudgetExceeded) as caught, in_words_of_a_chat():
        raise EncodingBudgetExceeded(9000, 8192, None)
    assert "--memory" not in str(caught.value)
    assert "/exit" in caught.value.action


@pytest.fixture
def tight(native_package, tmp_path):
    """A chat with a context of 64 tokens that has 128 KiB more than it takes at least."""
    load = load_options(ctx=64, kv_type="f32", memory="3GiB").but(base_bytes=own_bytes() + (64 << 20))
    minimum = plan_model(open_package(native_package), load).minimum_bytes
    made = make_chat(native_package, tmp_path, load.but(memory=minimum + (1 << 17)))
    yield made
    made.close()


def test_a_context_that_does_not_fit_is_refused_with_what_can_be_typed(tight):
    same = str(tight.model.package.path)
    with pytest.raises(MemoryBudgetExceeded) as caught:
        tight.switch(same, tight.load.but(ctx=128, memory=5 << 20))
    ways = caught.value.action.removeprefix("Try ").split(" or ")
    assert ways
    assert all(way.startswith(f"/exit and edge-rt chat -m {same} --memory ") for way in ways)
    # The model is named as the user did.
    with pytest.raises(MemoryBudgetExceeded, match="edge-rt chat -m my-model --memory"):
        tight.switch(same, tight.load.but(ctx=128, memory=5 << 20), called="my-model")


def test_a_drafter_that_the_plan_has_no_room_for_is_refused_with_what_can_be_typed(tight):
    with pytest.raises(MemoryBudgetExceeded, match="no room for the drafter") as caught:
        tight.set_options(tight.options.with_options(spec="recycling"))
    assert caught.value.action == WAYS


def test_a_drafter_that_was_set_gives_way_where_another_load_has_no_room_for_it(tight):
    tight.options = tight.options.with_options(spec="recycling")
    tight.switch(str(tight.model.package.path), tight.load.but(spec="off"))
    assert tight.options.spec is None
    assert "spec and accept are reset to their defaults" in tight.terminal._err.getvalue()
    tight.say("one")


@pytest.fixture
def drafting(native_package, tmp_path):
    """A chat under a budget whose drafters have room for some thousand tokens."""
    made = make_chat(native_package, tmp_path, load_options("auto", ctx=64, memory="3GiB"))
    yield made
    made.close()


def test_a_reference_text_that_the_plan_has_no_room_for_is_refused_where_it_is_set(drafting, tmp_path):
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    short.write_text("The sea is wide.")
    long.write_text(" harbour" * (drafting.model.plan.choice.suffix_tokens + 1))
    commands = Commands(drafting)
    commands.run(f"/set reference {short}")
    with pytest.raises(ReferenceBudgetExceeded, match="It has about") as caught:
        commands.run(f"/set reference {long}")
    assert "/set reference none" in caught.value.action
    assert drafting.options.reference == short.read_text()
    commands.run("/set spec off")
    commands.run(f"/set reference {long}")
    with pytest.raises(ReferenceBudgetExceeded):
        commands.run("/set spec auto")
    assert drafting.options.spec == "off"


def test_a_reference_text_leaves_room_for_the_table_beside_it(drafting):
    tokens = drafting.model.plan.choice.suffix_tokens
    texts = [drafting.model.tokenizer.decode([300] * (tokens - less)) for less in (8, 64)]
    counts = [len(drafting.model.tokenizer.encode_text(text)) for text in texts]
    assert [tokens - 64 < counts[0] <= tokens, counts[1] <= tokens - 64] == [True, True]
    with pytest.raises(ReferenceBudgetExceeded, match=f"may keep {tokens - 64} of them"):
        drafting.set_options(drafting.options.with_options(reference=texts[0]))
    drafting.set_options(drafting.options.with_options(reference=texts[0], spec="reference"))
    drafting.set_options(drafting.options.with_options(reference=texts[1], spec="auto"))


def test_a_reference_text_that_another_load_has_no_room_for_is_told(drafting):
    drafting.set_options(drafting.options.with_options(spec="off", reference=" harbour" * 40_000))
    drafting.options = drafting.options.with_options(spec="auto")
    drafting.switch(str(drafting.model.package.path), drafting.load.but(ctx=32))
    assert "warning: The reference text does not fit the memory plan." in drafting.terminal._err.getvalue()
    with pytest.raises(ReferenceBudgetExceeded, match="/set reference none"):
        drafting.say("one")
    Commands(drafting).run("/set reference none")
    drafting.say("one")


def test_a_text_that_has_to_be_encoded_at_once_is_refused_where_it_does_not_fit_the_plan(tight, tmp_path):
    (tmp_path / "long.txt").write_text("~" * 9000)
    with pytest.raises(MemoryBudgetExceeded, match=r"9000 bytes without a place to split.*room for 8192") as caught:
        tight.model.texts._require_encodable("~" * 9000)
    assert "spaces or line ends" in caught.value.action
    with pytest.raises(EncodingBudgetExceeded, match="9000 bytes") as advised, in_words_of_a_chat():
        tight.model.texts._require_encodable("~" * 9000)
    enough = caught.value.enough
    way = (
        f"Break it up, for example with spaces or line ends, or leave with /exit and start again with --memory {enough}"
    )
    assert advised.value.action == f"{way}."
    assert str(advised.value).endswith(f"{way}.")
    Commands(tight).run(f"/read {tmp_path / 'long.txt'}")
    assert "tokens, too many for the context" in tight.terminal._err.getvalue()
