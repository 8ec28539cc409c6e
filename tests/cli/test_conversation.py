"""Changing the model of a conversation."""

from __future__ import annotations

import dataclasses
import io
import shutil
import signal

import pytest

from edge_rt.cli.console import Terminal
from edge_rt.cli.conversation import Conversation
from edge_rt.cli.interrupt import SignalReceived
from edge_rt.cli.loading import load_model
from edge_rt.cli.options import ModelFlags
from edge_rt.errors import Cancelled, ModelNotFound, UnsupportedModel
from edge_rt.runtime.config import GenerationConfig


class Loader:
    """Loads models and keeps them; the next loads may raise what is put into ``raising``, or give no chat."""

    def __init__(self):
        self.models = []
        self.raising = []
        self.has_chat = True

    def __call__(self, package, flags):
        if self.raising:
            raise self.raising.pop(0)
        model = load_model(package, flags)
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
    terminal = Terminal(io.StringIO(), io.StringIO())
    flags = ModelFlags(str(package), store=tmp_path / "store")
    options = GenerationConfig(temperature=0.0, max_tokens=2)
    made = Conversation(terminal, flags, options, system="Be brief.", load=loader)
    made.say("one")
    yield made
    made.close()


@pytest.fixture
def other(conversation):
    return dataclasses.replace(conversation.flags, ctx=64)


def goes_on(conversation):
    """Answer a message and return the roles so far."""
    conversation.say("two")
    return [message["role"] for message in conversation.chat.messages]


ROLES = ["system", "user", "assistant", "user", "assistant"]


def test_what_does_not_exist_does_not_close_the_model(conversation, loader, package):
    shutil.rmtree(package)
    with pytest.raises(ModelNotFound):
        conversation.switch(dataclasses.replace(conversation.flags, model="nope"))
    assert conversation.model is loader.models[0]
    assert goes_on(conversation) == ROLES


def test_a_model_without_chat_is_closed_and_the_one_before_is_back(conversation, loader, other):
    loader.has_chat = False
    flags = conversation.flags
    with pytest.raises(UnsupportedModel, match="no chat template"):
        conversation.switch(other)
    assert [model._runner is None for model in loader.models] == [True, True, False]
    assert conversation.flags == flags
    assert goes_on(conversation) == ROLES


def test_the_first_error_is_told_if_the_one_before_cannot_come_back(conversation, loader, other):
    loader.raising = [UnsupportedModel("first", "", ""), UnsupportedModel("second", "", "")]
    with pytest.raises(UnsupportedModel, match="first"):
        conversation.switch(other)
    assert "cannot be loaded again: second" in conversation.terminal._err.getvalue()
    conversation.switch(other)
    assert goes_on(conversation) == ROLES


def test_ctrl_c_brings_the_one_before_back(conversation, loader, other):
    loader.raising = [SignalReceived(signal.SIGINT)]
    flags = conversation.flags
    with pytest.raises(Cancelled):
        conversation.switch(other)
    assert conversation.flags == flags
    assert goes_on(conversation) == ROLES


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)], ids=["another signal", "a second Ctrl-C"]
)
def test_other_signals_leave(signals, conversation, loader, other):
    loader.raising = [SignalReceived(signum) for signum in signals]
    with pytest.raises(SignalReceived):
        conversation.switch(other)
    assert loader.raising == []
