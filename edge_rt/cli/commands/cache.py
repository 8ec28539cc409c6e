"""``edge-rt cache``: what a prompt cache holds, and prompts that come with a package."""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only, path_of
from edge_rt.cli.options.typer_commands import PlainCommand, PlainGroup, typer_command
from edge_rt.cli.overview import COMMANDS
from edge_rt.errors import ConfigError, StorageError
from edge_rt.system.byte_size import human_bytes

cache_app = typer.Typer(
    rich_markup_mode="rich",
    cls=PlainGroup,
    no_args_is_help=True,
    help=COMMANDS["cache"].summary,
)


@dataclass(frozen=True)
class FolderFlags:
    """A prompt cache."""

    folder: Annotated[Path, flags.PROMPT_CACHE_ARGUMENT]

    @property
    def path(self) -> Path:
        """The folder, which has to be there."""
        path = path_of(str(self.folder)).absolute()
        if not path.is_dir():
            raise StorageError(f"{path} is not a folder.", "", "Give the folder that --prompt-cache was given.")
        return path


@cache_app.command("list", cls=PlainCommand)
@typer_command
def list_cache(where: FolderFlags, output: OutputFlags) -> int:
    """List what is stored of prompts, model by model."""
    from edge_rt.runtime.cache.block_folder import list_prompts

    terminal, path = output.terminal(), where.path
    entries = list_prompts(path)
    total = sum(entry.bytes for entry in entries)
    if output.json:
        models = [{**dataclasses.asdict(entry), "path": str(entry.path)} for entry in entries]
        terminal.document({"path": str(path), "bytes": total, "models": models})
        return 0
    if not entries:
        terminal.note(f"No prompts are stored in {path}.")
        return 0
    rows = [("MODEL", "KV CACHE", "TOKENS", "SIZE", "LAST USED")]
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)) if entry.used else "-"
        rows.append((entry.model, entry.kv_format, f"{entry.tokens:,}", human_bytes(entry.bytes), used))
    terminal.table(rows, right=(2, 3))
    return 0


@dataclass(frozen=True)
class AddFlags:
    """What is computed."""

    system: Annotated[str, flags.SYSTEM.but(help="System message, as chats will have it.")]


@cache_app.command(cls=PlainCommand)
@typer_command
def add(
    wanted: AddFlags,
    load: Annotated[LoadFlags, only("model", "memory", "experts", "ctx", "threads", "kv_type")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Compute a system message and keep the result in the package: chats that begin with it read it, anywhere."""
    from edge_rt.cli.loading import load_model, obtain_package

    terminal = output.terminal()
    asked = load.options(places).but(device="cpu", spec="off")
    _, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
    model = load_model(package, asked)
    path, tokens = model.carry_prompt(wanted.system)
    kv, size = model.plan.choice.kv_format, path.stat().st_size
    if output.json:
        terminal.document({"path": str(path), "tokens": tokens, "bytes": size, "kv_format": kv})
    else:
        terminal.line(f"the package has {tokens} tokens of it now ({kv} cache, {human_bytes(size)}): {path}")
    return 0


@dataclass(frozen=True)
class ClearFlags:
    """Whether to ask."""

    yes: Annotated[bool, flags.YES] = False


@cache_app.command(cls=PlainCommand)
@typer_command
def clear(where: FolderFlags, asking: ClearFlags, output: OutputFlags) -> int:
    """Remove all that is stored of prompts; other files in the folder stay."""
    from edge_rt.runtime.cache.block_folder import clear_prompts, list_prompts

    terminal, path = output.terminal(), where.path
    total = sum(entry.bytes for entry in list_prompts(path))
    if not asking.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError("Removing needs confirmation.", "There is no terminal to ask at.", "Add --yes.")
        if not terminal.ask(f"Remove all stored prompts ({human_bytes(total)}) from {path}?"):
            terminal.note("nothing was removed")
            return 1
    freed = clear_prompts(path)
    if output.json:
        terminal.document({"path": str(path), "bytes": freed})
    else:
        terminal.line(f"removed all stored prompts from {path}, {human_bytes(freed)} freed")
    return 0
