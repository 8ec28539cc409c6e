"""The slash commands of a chat."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge_rt.cli.chat.advice import (
    held_rows,
    in_words_of_a_chat,
    info_rows,
    on_gpu,
    planned_text,
    shared_text,
    term_size,
)
from edge_rt.cli.chat.conversation import Attachment, Conversation
from edge_rt.cli.chat.settings import (
    SPEC_OPTIONS,
    option_name,
    parse_option,
    sampling_shown,
    settings_to_options,
    shown,
)
from edge_rt.cli.notices import thought_switch
from edge_rt.cli.options.spread import path_of
from edge_rt.cli.render.console import joined_lines, number
from edge_rt.cli.render.stats import device_text, tell_table
from edge_rt.errors import ConfigError, InputError, InvalidPromptCache, StorageError
from edge_rt.system.byte_size import counted, parse_size, show_share, show_size
from edge_rt.system.files import read_text

SHOW_TOPICS: Final = ("info", "template", "params", "memory")
WITH_CACHE: Final = "--with-cache"
_INDENT: Final = 24
"""Columns before the texts of a list."""


_TYPED: Final = {
    '""" ... """': "several lines; also Alt-Enter, or \\ at a line's end",
    "//text": "a message that begins with a slash",
    "Ctrl-G": "write in $EDITOR",
    "Ctrl-C": "stop the answer",
    "Ctrl-D": "leave",
}
"""Besides commands, what ``/help`` lists."""


class LeaveChat(Exception):
    """The user wants to leave."""


@dataclass(frozen=True)
class Command:
    """One slash command."""

    run: Callable[[str], None]
    usage: str
    text: str


class Commands:
    """Runs lines that begin with a slash.

    Args:
        ask: asks the user a yes-or-no question; None: nobody can be asked.
    """

    def __init__(self, conversation: Conversation, ask: Callable[[str], bool] | None = None) -> None:
        self._conversation = conversation
        self._ask = ask
        self._own_files: set[Path] = set()  # files that this chat was saved to or loaded from
        self._terminal = conversation.terminal
        self._budget = conversation.load.memory  # a preset's is its own
        self.table: Mapping[str, Command] = {
            "/help": Command(self._help, "", "list the commands"),
            "/exit": Command(self._exit, "", "leave (Ctrl-D)"),
            "/clear": Command(self._clear, "", "forget the conversation, keep the system message"),
            "/system": Command(self._system, "[TEXT]", 'set the system message ("" removes it), or show it'),
            "/set": Command(self._set, "[OPTION VALUE]", "change an option, or list them"),
            "/show": Command(self._show, "[TOPIC]", f"show facts: {', '.join(SHOW_TOPICS)}"),
            "/think": Command(self._think, "[on|off]", "turn the model's thoughts on or off"),
            "/stats": Command(self._stats, "[on|off]", "figures of the last answer; on: after each"),
            "/save": Command(self._save, "FILE", f"save the chat; FILE {WITH_CACHE}: what it computed, too"),
            "/load": Command(self._load, "FILE", "load a saved conversation"),
            "/regen": Command(self._regen, "", "generate a new answer to the last message"),
            "/continue": Command(self._continue, "", "continue the last answer where it ends"),
            "/undo": Command(self._undo, "", "drop a pending /read, else the last exchange"),
            "/read": Command(self._read, "FILE", "put a file's text in front of the next message"),
            "/model": Command(self._model, "MODEL", "change the model, or preset; memory is planned anew"),
            "/ctx": Command(self._ctx, "N", "change the context size; memory is planned anew"),
        }

    def run(self, line: str) -> None:
        """Run one line."""
        name, _, rest = line.strip().partition(" ")
        name = {"/quit": "/exit", "/bye": "/exit", "/?": "/help"}.get(name, name)
        command = self.table.get(name)
        if command is None:
            close = difflib.get_close_matches(name, self.table, n=1)
            raise ConfigError(
                f"There is no command {name!r:.60}.",
                f"Did you mean {close[0]}?" if close else f"None of the {len(self.table)} commands is similar.",
                "See /help; a message that begins with a slash is written with two: //.",
            )
        rest = rest.strip()
        if rest and not command.usage:
            raise ConfigError(f"{name} takes no argument.", f"Got {rest!r:.60}.", "Leave it out.")
        if not rest and command.usage and not command.usage.startswith("["):
            raise ConfigError(f"{name} needs an argument.", "None was given.", f"Write {name} {command.usage}.")
        command.run(rest)

    # --- leaving and help ---

    def _help(self, _: str) -> None:
        self._rows({f"{name} {command.usage}": command.text for name, command in self.table.items()} | _TYPED)

    def _exit(self, _: str) -> None:
        raise LeaveChat

    # --- the conversation ---

    def _clear(self, _: str) -> None:
        self._conversation.chat.clear()
        self._conversation.attached.clear()
        self._terminal.reply("the conversation is empty", "dim")

    def _system(self, text: str) -> None:
        chat = self._conversation.chat
        if not text:
            self._terminal.reply(chat.system if chat.system is not None else "(the template's own)")
            return
        chat.system = None if text in ('""', "''") else text
        self._terminal.reply("the system message is " + ("removed" if chat.system is None else "set"), "dim")

    def _regen(self, _: str) -> None:
        self._conversation.regenerate()

    def _continue(self, _: str) -> None:
        self._conversation.resume()

    def _undo(self, _: str) -> None:
        names = self._conversation.attached_names()
        if names:
            # Otherwise a text that does not fit the context would be put in front of every message.
            self._conversation.attached.clear()
            self._terminal.reply(f"the text of {names} is forgotten", "dim")
            return
        dropped = self._conversation.chat.undo()
        self._terminal.reply("the last exchange is forgotten" if dropped else "there is nothing to forget", "dim")

    def _read(self, argument: str) -> None:
        path = path_of(argument)
        text = read_text(path)
        with in_words_of_a_chat():
            tokens = self._count_tokens(text)
        self._conversation.attached.append(Attachment(path.name, text))
        self._terminal.reply(f"read {path.name}, {tokens}: in front of your next message", "dim")

    def _count_tokens(self, text: str) -> str:
        texts = self._conversation.model.texts
        assert texts is not None
        # A text that does not fit the context is encoded only until that is known.
        tokens, is_exact = texts.estimate_tokens(text)
        shown = counted(tokens, "token", number(tokens))
        return shown if is_exact else f"about {shown}, too many for the context"

    # --- options ---

    def _set(self, argument: str) -> None:
        conversation = self._conversation
        if not argument:
            self._show("params")
            return
        given, _, value = argument.partition(" ")
        name = option_name(given)
        if not value.strip():
            raise ConfigError(
                f"/set {name} needs a value.",
                f"It is {self._params()[name]} now.",
                f"Write /set {name} VALUE, or /set {name} default.",
            )
        parsed = parse_option(name, value.strip())
        try:
            # Judged by its range alone: what types an option may have in Python means nothing here.
            options = replace(conversation.options, **{name: parsed})
        except ConfigError as error:
            way = f"Write /set {name} VALUE, or /set {name} default."
            raise ConfigError(error.what, error.numbers, way) from error
        conversation.set_options(options)
        self._terminal.reply(f"{name} = {self._params()[name]}", "dim")

    def _show(self, topic: str) -> None:
        topic = topic or "info"
        conversation = self._conversation
        if topic == "info":
            self._rows(info_rows(conversation.model.describe(), conversation.device, conversation.spec))
        elif topic == "template":
            self._terminal.reply(conversation.model.template_source or "(none)")
        elif topic == "params":
            self._rows(self._params())
        elif topic == "memory":
            self._memory()
        else:
            topics = ", ".join(SHOW_TOPICS)
            raise ConfigError(f"/show has no topic {topic!r:.60}.", f"Its topics: {topics}.", "Write /show TOPIC.")

    def _params(self) -> dict[str, str]:
        conversation = self._conversation
        values = {name: shown(name, value) for name, value in conversation.settings().items()}
        options = conversation.options
        return {
            **values,
            **sampling_shown(options, conversation.model.package.manifest.sampling),
            "spec": conversation.spec,
            "reference": shown("reference", options.reference),
            "accept": options.accept,
        }

    def _rows(self, facts: Mapping[str, str]) -> None:
        columns = self._terminal.columns() - _INDENT if self._terminal.err_is_tty else None
        for name, text in facts.items():
            first, *more = joined_lines(text.split(" "), " ", columns)
            self._terminal.reply(f"  {name:{_INDENT - 3}} {first}")
            for line in more:
                self._terminal.reply(" " * _INDENT + line)

    def _memory(self) -> None:
        from edge_rt.system.process_memory import peak_rss_bytes

        conversation = self._conversation
        model = conversation.model
        facts = model.describe()
        memory = facts["memory"]
        waiting = [f"{item.name}, {self._count_tokens(item.text)}" for item in conversation.attached]
        self._rows(
            {
                **held_rows(conversation.chat.token_count(), model.kv_held, facts, "; ".join(waiting)),
                "planned": show_share(memory["planned_bytes"], memory["budget_bytes"]) + shared_text(memory),
                **on_gpu(memory),
                **{f"  {term.name}": f"{term_size(term)}  {term.text}" for term in model.plan.terms},
                "peak of the process": show_share(peak_rss_bytes(), memory["budget_bytes"]),
            }
        )
        for step in model.plan.given_up:
            self._terminal.reply(f"  reduced to fit: {step}")

    def _think(self, argument: str) -> None:
        if argument not in ("", "on", "off"):
            raise ConfigError("/think takes on or off.", f"Got {argument!r:.60}.", "Write /think on, or /think off.")
        conversation = self._conversation
        switch = thought_switch(conversation.model)
        if switch is None:
            known = ", ".join(sorted(conversation.model.template_variables)) or "none"
            raise ConfigError(
                "This model's chat template has no switch for thoughts.",
                f"Its arguments: {known}.",
                "Choose another model with /model, or start the chat with --template-arg.",
            )
        arguments = conversation.chat.template_args
        if argument:
            arguments[switch] = argument == "on"
        state = "as the template has them" if switch not in arguments else "on" if arguments[switch] else "off"
        self._terminal.reply(f"thoughts are {state}", "dim")

    def _stats(self, argument: str) -> None:
        if argument not in ("", "on", "off"):
            raise ConfigError("/stats takes on or off.", f"Got {argument!r:.60}.", "Write /stats on, or /stats off.")
        conversation = self._conversation
        if argument:
            conversation.show_stats = argument == "on"
            self._terminal.reply(f"figures are {argument}", "dim")
        elif conversation.last is None:
            self._terminal.reply("there is no answer yet", "dim")
        else:
            tell_table(self._terminal, conversation.last, conversation.device)

    # --- files ---

    def _save(self, argument: str) -> None:
        from edge_rt.runtime.chat_messages import read_chat, rows_path

        with_cache = argument.endswith(f" {WITH_CACHE}")
        path = path_of(argument.removesuffix(f" {WITH_CACHE}").rstrip())
        if path.name == WITH_CACHE:
            raise ConfigError("/save needs a file.", f"Got {WITH_CACHE} alone.", f"Write /save FILE {WITH_CACHE}.")
        if path.exists():
            try:
                read_chat(path)
            except InputError as error:
                raise ConfigError(
                    f"{path} exists and is not a saved chat.", error.numbers, "Choose another file."
                ) from error
            if path.resolve() not in self._own_files and not self._may_replace(path):
                self._terminal.reply("nothing was saved", "dim")
                return
        conversation = self._conversation
        try:
            conversation.chat.save(path, settings=conversation.settings(), with_cache=with_cache)
        except ConfigError as error:
            raise ConfigError(error.what, error.numbers, f"Leave {WITH_CACHE} out.") from error
        self._own_files.add(path.resolve())
        rows = rows_path(path)
        computed = f", and what was computed to {rows.name}" if with_cache and rows.exists() else ""
        self._terminal.reply(f"saved to {path}{computed}", "dim")

    def _may_replace(self, path: Path) -> bool:
        """Return whether a saved chat that is not this one may be replaced."""
        if self._ask is None:
            raise ConfigError(
                f"{path} holds another saved chat.",
                "Nobody can be asked here whether to replace it.",
                "Choose another file, or remove it first.",
            )
        return self._ask(f"{path} holds another saved chat. Replace it?")

    def _load(self, argument: str) -> None:
        from edge_rt.runtime.chat_messages import read_chat

        conversation, path = self._conversation, path_of(argument)
        own = {name: getattr(conversation.options, name) for name in SPEC_OPTIONS}
        options = settings_to_options({**read_chat(path).settings, **own})
        conversation.set_options(options)
        try:
            saved = conversation.chat.load(path)
        except (ConfigError, InvalidPromptCache, StorageError) as error:
            saved = conversation.chat.load(path, with_cache=False)
            self._terminal.warn(f"the conversation will be computed again. {error.what} {error.numbers}")
        self._own_files.add(path.resolve())
        conversation.attached.clear()
        if saved.package_id != conversation.model.package.id:
            self._terminal.warn(
                f"the conversation was saved with another package ({saved.model}, {saved.package_id[:12]}); "
                "answers will differ."
            )
        self._terminal.reply(f"loaded {counted(len(saved.messages), 'message')} and the options from {path}", "dim")

    # --- the model ---

    def _model(self, argument: str) -> None:
        conversation = self._conversation
        before = conversation.model.describe()
        preset = conversation.places.configured.presets.get(argument)
        if preset is None:
            conversation.switch(argument, conversation.load.but(ctx=None, memory=self._budget))
        else:
            memory = self._budget if preset.memory is None else parse_size(preset.memory)
            conversation.switch(preset.model, conversation.load.but(ctx=preset.ctx, memory=memory), called=argument)
            conversation.set_options(conversation.options.with_options(**preset.options))
            if preset.system is not None:
                conversation.chat.system = preset.system
        for line in conversation.banner()[:-1]:
            self._terminal.reply(line, "dim")
        self._tell_changes(before, conversation.model.describe())

    def _ctx(self, argument: str) -> None:
        conversation = self._conversation
        trained = conversation.model.package.manifest.model.context_length
        if not argument.isdecimal() or not 2 <= int(argument) <= trained:
            raise ConfigError(
                "The context is out of range.",
                f"Got {argument!r:.40}; this model allows 2 to {trained} tokens.",
                "Write /ctx N with N in that range.",
            )
        same = str(conversation.model.package.path)
        before = conversation.model.describe()
        conversation.switch(same, conversation.load.but(ctx=int(argument)), called=conversation.reference)
        after = conversation.model.describe()
        self._terminal.reply(f"the context has {number(after['context_tokens'])} tokens", "dim")
        self._tell_changes(before, after)
        planned = [planned_text(facts["memory"], with_budget=False) for facts in (before, after)]
        budget = after["memory"]["budget_bytes"]
        room = "" if budget is None else f", the budget is {show_size(budget)}"
        change = f" instead of {planned[0]}" if planned[1] != planned[0] else ""
        shared = shared_text(after["memory"])
        self._terminal.reply(f"memory planned: {planned[1]}{change}{shared}{room}", "dim")

    def _tell_changes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        titles = {name: name.replace("_", " ") for name in ("rotation", "speculation", "prefill_chunk")}
        devices = [device_text(facts["device"]) for facts in (before, after)]
        if devices[1] != devices[0]:
            self._terminal.reply(f"device: {devices[1]} instead of {devices[0]}", "dim")
        for name, title in ({"kv_format": "cache"} | titles).items():
            if before[name] != after[name]:
                self._terminal.reply(f"{title}: {after[name]} instead of {before[name]}", "dim")
