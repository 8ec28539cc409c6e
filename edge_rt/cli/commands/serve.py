"""``edge-rt serve``: models for apps that speak OpenAI's, Anthropic's or Ollama's API."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from edge_rt.cli.interrupt import SignalReceived, signals_held
from edge_rt.cli.loading import check_runtime, obtain_package, telling_load
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags, SpeculationFlags, configured, preset_of
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, ModelNotFound
from edge_rt.server import require_packages
from edge_rt.system.byte_size import show_size

if TYPE_CHECKING:
    from edge_rt.memory.budget import Budget
    from edge_rt.server.models import Models
    from edge_rt.store.config import Preset
    from edge_rt.store.layout import Store

PROMPTS_FOLDER: Final = "served-prompts"


@dataclass(frozen=True)
class AddressFlags:
    """Where the server listens, and who may ask."""

    host: Annotated[str, flags.HOST] = "127.0.0.1"
    port: Annotated[int, flags.PORT] = 8080
    api_key_file: Annotated[Path | None, flags.API_KEY_FILE] = None
    allowed_host: Annotated[list[str] | None, flags.ALLOWED_HOST] = None
    allow_origin: Annotated[list[str] | None, flags.ALLOW_ORIGIN] = None

    def check(self) -> None:
        """Refuse what no client could send."""
        if not 0 <= self.port < 1 << 16:
            raise ConfigError("The port is out of range.", f"Got {self.port}.", "Give 0 (any) to 65535.")
        for name in self.allowed_host or ():
            if not name or any(mark in name for mark in "/*@, ") or not name.isprintable():
                raise ConfigError(
                    "That is no name of a server.",
                    f"Got {name!r:.80}.",
                    "Write the name alone, as clients have it in addresses: --allowed-host pi.local.",
                )
        for origin in self.allow_origin or ():
            scheme, marks, rest = origin.partition("://")
            if not (scheme and marks and rest) or "/" in rest.rstrip("/") or "*" in origin:
                raise ConfigError(
                    "That is no origin of a page.",
                    f"Got {origin!r:.80}.",
                    "Write scheme, host and port: --allow-origin http://localhost:3000.",
                )


@dataclass(frozen=True)
class ServingFlags:
    """How many answers at once, and what is kept."""

    slots: Annotated[int, flags.SLOTS.but(shown="4")] = 4
    kv_rows: Annotated[int | None, flags.KV_ROWS] = None
    queue: Annotated[int, flags.QUEUE] = 64
    unload_after: Annotated[float, flags.UNLOAD_AFTER] = 900.0
    prompt_cache: Annotated[Path | None, flags.PROMPT_CACHE.but(shown="a folder of this user's")] = None
    no_prompt_cache: Annotated[bool, flags.NO_PROMPT_CACHE] = False
    usual_preset: str | None = None

    def check(self) -> None:
        """Refuse what cannot be."""
        if not 0 <= self.unload_after < float("inf"):
            raise ConfigError(
                "The time after which a model is unloaded is out of range.",
                f"Got {self.unload_after:g}.",
                "Give a number of seconds; 0 keeps models loaded.",
            )
        if self.no_prompt_cache and self.prompt_cache is not None:
            what = "--prompt-cache and --no-prompt-cache exclude each other."
            raise ConfigError(what, "Both were given.", "Choose one.")

    def completed(self, groups: Iterable[object]) -> ServingFlags:
        """Return the flags with the name of the preset that the model argument is."""
        groups = tuple(groups)
        if (preset := preset_of(groups)) is None or (config := configured(groups)) is None:
            return self
        return replace(self, usual_preset=next(name for name, one in config.presets.items() if one is preset))

    @property
    def usual_prompts(self) -> Path | None:
        """The folder that keeps rows of prompts where none is named; None: nothing is written."""
        from edge_rt.system.json_files import user_cache

        return None if self.no_prompt_cache else user_cache(PROMPTS_FOLDER)


def serve(
    load: Annotated[
        LoadFlags,
        only(
            "model",
            "memory",
            "device_memory",
            "experts",
            "ctx",
            "threads",
            "device",
            "on_device_error",
            "kv_type",
            "isa",
            "prompt_cache_size",
        ),
    ],
    address: AddressFlags,
    serving: ServingFlags,
    speculation: Annotated[SpeculationFlags, only("spec", "draft_max", "drafter")],
    output: Annotated[OutputFlags, only("quiet", "verbose", "no_color")],
    places: PlaceFlags,
) -> int:
    """Answer apps that speak OpenAI's, Anthropic's or Ollama's API, with the models of this machine."""
    terminal = output.terminal()
    address.check()
    speculation.check()
    serving.check()
    require_packages()
    from edge_rt.server.running import KEY_VARIABLE, RunningServer, open_socket, read_key
    from edge_rt.server.shared import Server

    file = None if address.api_key_file is None else address.api_key_file.expanduser()
    key = read_key(file, os.environ.get(KEY_VARIABLE), address.host)
    check_runtime()
    # A port that is taken is told before a model is fetched.
    with open_socket(address.host, address.port) as bound:
        models = _models(terminal, load, places, serving, speculation)
        running = RunningServer(
            Server(models, log=terminal.note, shows_tracebacks=terminal.verbose),
            bound,
            host=address.host,
            key=key,
            allowed_hosts=address.allowed_host or (),
            allowed_origins=address.allow_origin or (),
            on_ready=lambda url: _tell_ready(terminal, url, models.name_of(None), address, key=key),
        )
        try:
            with signals_held(lambda _: running.leave(), lambda _: running.leave()):
                asyncio.run(running.run())
        except SignalReceived as stop:
            # Everything was answered: for what has sent SIGTERM that is success.
            if stop.signum != signal.SIGTERM:
                raise
            terminal.note("stopped", "dim")
    return 0


def _budget(load: LoadFlags, places: PlaceFlags) -> Budget:
    """Return the budget that all models share: the one that was given, else what the machine has."""
    from edge_rt.memory.budget import Budget
    from edge_rt.server.bodies import REQUESTS_BYTES
    from edge_rt.system.machine import available_memory_bytes
    from edge_rt.system.process_memory import own_bytes

    given = load.budget_bytes(places)
    if given is not None and given <= REQUESTS_BYTES:
        size = show_size(given) if given >= 1 << 20 else f"{given} bytes"
        raise MemoryBudgetExceeded(
            "The budget is no more than requests take of it, beside models.",
            f"They take {show_size(REQUESTS_BYTES)}, the budget is {size}.",
            "Give what 'edge-rt plan' shows for the model, and that much more.",
        )
    budget = Budget(available_memory_bytes() + own_bytes() if given is None else given)
    budget.claim("requests", REQUESTS_BYTES)
    return budget


def _models(
    terminal: Terminal, load: LoadFlags, places: PlaceFlags, serving: ServingFlags, speculation: SpeculationFlags
) -> Models:
    """Return the models that are served; the usual one is fetched if need be."""
    from edge_rt.server.models import Models

    is_named = load.model is not None or serving.usual_preset is not None
    usual, packages = _packages(terminal, load, places, is_named=is_named)
    presets = _presets(places, packages())
    if serving.usual_preset is not None:
        # Its model was fetched just now, if need be, under the name that the store has for it.
        presets[serving.usual_preset] = replace(places.configured.presets[serving.usual_preset], model=usual)
        usual = serving.usual_preset
    # What is asked for is refused where it cannot be had; what is usual is left out there.
    is_asked = serving.prompt_cache is not None or load.prompt_cache_size is not None
    folder = (serving.prompt_cache or serving.usual_prompts) if is_asked else None
    asked = replace(load, prompt_cache=folder).options(places, speculation, answers=True)
    asked = asked.but(slots=serving.slots, kv_rows=serving.kv_rows, max_queue=serving.queue, formats=True)
    asked = asked.but(memory=_budget(load, places))
    return Models(
        lambda: _with_presets(packages(), presets),
        usual,
        telling_load(terminal, asked).but(base_bytes=None),
        presets=presets,
        prompts_folder=None if is_asked else serving.usual_prompts,
        idle_seconds=serving.unload_after or None,
        log=terminal.note,
        warn=terminal.warn,
    )


def _packages(
    terminal: Terminal, load: LoadFlags, places: PlaceFlags, *, is_named: bool
) -> tuple[str, Callable[[], Mapping[str, Path]]]:
    """Return the usual model's name, and what finds the packages of all."""
    store = places.open_store()
    if is_named:
        usual, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
        return usual, lambda: {**_stored(store), usual: package.path}
    stored = _stored(store)
    if not stored:
        raise ModelNotFound(
            "There is no model on this machine.",
            f"The store in {store.root} is empty.",
            f"Name one, which is fetched first: edge-rt serve -m {load.reference}",
        )
    usual = load.reference if load.reference in stored else next(iter(stored))
    return usual, lambda: _stored(store)


def _presets(places: PlaceFlags, known: Mapping[str, Path]) -> dict[str, Preset]:
    """Return the presets of the configuration file whose models are here."""
    return {name: preset for name, preset in places.configured.presets.items() if preset.model in known}


def _with_presets(packages: Mapping[str, Path], presets: Mapping[str, Preset]) -> dict[str, Path]:
    """Return packages by their names and those of presets, which go before models of the same name."""
    return {**packages, **{name: packages[one.model] for name, one in presets.items() if one.model in packages}}


def _stored(store: Store) -> dict[str, Path]:
    """Return the packages of the store by name."""
    return {name: store.package_path(name) for name in store.names() if store.has_package(name)}


def _tell_ready(terminal: Terminal, url: str, usual: str, address: AddressFlags, *, key: str | None) -> None:
    from edge_rt.server.guard import is_loopback

    with_key = "" if key is None else " (with a key)"
    # A port that the system has chosen is known from here alone.
    tell = terminal.note if address.port else terminal.reply
    tell(f"serving {usual} on {url}/v1{with_key}, a page on {url}/; Ctrl-C stops")
    if not is_loopback(address.host):
        terminal.warn("Keys and texts travel as they are: for HTTPS put a proxy in front, as docs/server.md shows.")
