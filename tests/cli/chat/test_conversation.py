"""Changing the model of a conversation."""

from __future__ import annotations

import json
import mmap
import shutil
import signal
import sys

import pytest

from edge_rt.cli.interrupt import SignalReceived
from edge_rt.cli.loading import load_model, plan_model
from edge_rt.errors import Cancelled, MemoryBudgetExceeded, ModelNotFound, UnsupportedModel
from edge_rt.package.reader import open_package
from edge_rt.system.process_memory import own_bytes
from tests.helpers.chats import load_options, make_chat

MIB = 1 << 20


class Loader:
    """Loads models and keeps them; the next loads may raise what is put into ``raising``, or give no chat."""

    def __init__(self):
        self.models = []
        self.raising = []
        self.has_chat = True

    def __call__(self, package, options, plan):
        if self.raising:
            raise self.raising.pop(0)
        model = load_model(package, options, plan)
        self.models.append(model)
        if not self.has_chat:
            self.has_chat = True
            model.chat = self._no_chat
        return model

    def _no_chat(self):
        raise UnsupportedModel("There is no chat template.", "", "Use generate.")


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def package(small_package, tmp_path):
    return shutil.copytree(small_package, tmp_path / "package")


@pytest.fixture
def conversation(package, loader, tmp_path):
    made = make_chat(package, tmp_path, system="Be brief.", load_model=loader)
    made.say("one")
    yield made
    made.close()


@pytest.fixture
def other(conversation):
    return str(conversation.model.package.path), conversation.load.but(ctx=64)


def path_of(conversation):
    return str(conversation.model.package.path)


def goes_on(conversation):
    """Answer a message and return the roles so far."""
    conversation.say("two")
    return [message["role"] for message in conversation.chat.messages]


ROLES = ["system", "user", "assistant", "user", "assistant"]


def test_what_does_not_exist_does_not_close_the_model(conversation, loader, package):
    shutil.rmtree(package)
    with pytest.raises(ModelNotFound):
        conversation.switch("nope", conversation.load)
    assert conversation.model is loader.models[0]
    assert goes_on(conversation) == ROLES


def test_a_model_without_chat_is_closed_and_the_one_before_is_back(conversation, loader, other):
    loader.has_chat = False
    load = conversation.load
    with pytest.raises(UnsupportedModel, match="no chat template"):
        conversation.switch(*other)
    assert [not model._runner.is_open for model in loader.models] == [True, True, False]
    assert conversation.load == load
    assert goes_on(conversation) == ROLES


def test_the_first_error_is_told_if_the_one_before_cannot_come_back(conversation, loader, other):
    loader.raising = [UnsupportedModel("first", "", ""), UnsupportedModel("second", "", "")]
    with pytest.raises(UnsupportedModel, match="first"):
        conversation.switch(*other)
    assert "cannot be loaded again: second" in conversation.terminal._err.getvalue()
    conversation.switch(*other)
    assert goes_on(conversation) == ROLES


def test_ctrl_c_brings_the_one_before_back(conversation, loader, other):
    loader.raising = [SignalReceived(signal.SIGINT)]
    load = conversation.load
    with pytest.raises(Cancelled):
        conversation.switch(*other)
    assert conversation.load == load
    assert goes_on(conversation) == ROLES


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)], ids=["another signal", "a second Ctrl-C"]
)
def test_other_signals_leave(signals, conversation, loader, other):
    loader.raising = [SignalReceived(signum) for signum in signals]
    with pytest.raises(SignalReceived):
        conversation.switch(*other)
    assert loader.raising == []


@pytest.fixture
def tight(native_package, loader, tmp_path):
    """A chat whose budget is 2 MiB more than a context of 256 tokens takes at least."""
    # What the process holds is counted as so much, also where it grows a little meanwhile.
    load = load_options(ctx=256, memory="3GiB").but(base_bytes=own_bytes() + 64 * MIB)
    minimum = plan_model(open_package(native_package), load).minimum_bytes
    made = make_chat(native_package, tmp_path, load.but(memory=minimum + 2 * MIB), load_model=loader)
    made.say("one")
    yield made
    made.close()


def test_a_process_that_has_grown_may_load_again_what_it_had(tight):
    choices, base = {256: tight.model.plan.choice}, tight.model.plan.base_bytes
    # Far more than the plans count, and none of it from what the heap has free.
    with mmap.mmap(-1, 256 * MIB) as ballast:
        ballast.write(b"x" * len(ballast))
        for ctx in (64, 256, 128, 256, 64):
            tight.switch(path_of(tight), tight.load.but(ctx=ctx))
            assert choices.setdefault(ctx, tight.model.plan.choice) == tight.model.plan.choice
            assert tight.model.plan.base_bytes == base


def test_a_checkpoint_whose_export_does_not_fit_is_refused_with_what_can_be_typed(tight, small_gguf):
    with pytest.raises(
        MemoryBudgetExceeded, match=r"The export does not fit.* [MG]iB; the budget is 5\.0 MiB"
    ) as caught:
        tight.switch(str(small_gguf), tight.load.but(memory=5 * MIB))
    assert caught.value.action.endswith(f": /exit and edge-rt pull {small_gguf}")
    tight.say("two")


def test_what_does_not_fit_is_refused_before_anything_is_closed(tight, loader):
    load = tight.load
    with pytest.raises(MemoryBudgetExceeded):
        tight.switch(path_of(tight), load.but(memory=5 * MIB))
    assert loader.models == [tight.model]
    assert tight.load == load
    tight.say("two")


def test_after_ctrl_c_the_model_is_as_it_was_and_nothing_is_measured_again(tight, loader):
    before, costs = tight.model.plan, tight.model.speculation.costs
    measured = []
    loader.raising = [SignalReceived(signal.SIGINT)]
    with pytest.raises(Cancelled):
        tight.switch(path_of(tight), tight.load.but(ctx=64))
    assert tight.model is loader.models[1]
    assert tight.model.plan == before
    tight.model.measured_costs.on_measure = lambda: measured.append(1)
    assert tight.model.speculation.costs is costs
    tight.say("two")
    assert measured == []


def test_a_package_with_the_same_tokenizer_does_not_read_it_again(tight):
    tokenizer = tight.model.tokenizer
    tight.switch(path_of(tight), tight.load.but(ctx=64))
    assert tight.model.tokenizer is tokenizer


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_a_chat_keeps_its_budget_through_many_loads(cli, native_package):
    lines = "".join(f"/ctx {ctx}\nTell me of the sea. {'word ' * (ctx // 4)}\n/clear\n" for ctx in (512, 128) * 4)
    # A command's own process holds less than this one.
    budget = plan_model(open_package(native_package), load_options(memory="3GiB")).minimum_bytes
    done = cli("chat", "-m", native_package, "--memory", budget, "-n", 8, "--json", stdin=lines.encode())
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["turns"]) == 8
    assert max(turn["memory"]["peak_bytes"] for turn in document["turns"]) <= budget
