"""The models of a server: loaded when they are asked for, unloaded when nobody does, never more than the budget has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_rt.device.names import CPU
from edge_rt.errors import DEVICE_FAILURES, EdgeRTError, MemoryBudgetExceeded
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure
from edge_rt.system.byte_size import show_size

if TYPE_CHECKING:
    from edge_rt.device.names import DeviceChoice
    from edge_rt.memory.plan import Plan
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.runtime.model import Model
    from edge_rt.store.config import Preset

USUAL_NAMES: Final = ("", "default")
"""What requests may call the usual model, besides its name."""
_WARMING: Final = (24, 12, 6, 1)
"""Tokens of prompts whose passes take other kernels each on a GPU: of more than 16 rows, of more than 8, and of few."""


@dataclass
class LoadedModel:
    """A model that is loaded.

    Attributes:
        users: requests that use it now.
        used: when the last one ended.
        told: what computes, as it was last told.
        turn: held by the one answer of a model that has no slots.
        embedding: requests for embeddings, one of which is computed.
    """

    name: str
    model: Model
    users: int = 0
    used: float = 0.0
    told: DeviceChoice | None = None
    turn: asyncio.Lock | None = field(init=False)
    embedding: int = 0
    embedding_turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.turn = asyncio.Lock() if self.model.plan.request.slots == 1 else None


@dataclass
class Models:
    """Models by name.

    Attributes:
        packages: returns the folder of every model by its name, and by those of presets; it is asked again each time.
        usual: the model of requests that name none.
        options: how models are loaded; their budget is one that they share.
        presets: models with a system message and options, by their names; their models are names as well.
        prompts_folder: where rows of prompts are kept if the options name no folder, and they can be kept.
        idle_seconds: after how long without a request a model is unloaded; None: never.
        log: writes a line for whoever runs the server.
        warn: writes one that is a warning.
        stopping: whether nothing is to be computed any more for models that are being loaded.
    """

    packages: Callable[[], Mapping[str, Path]]
    usual: str
    options: LoadOptions
    presets: Mapping[str, Preset] = field(default_factory=dict)
    prompts_folder: Path | None = None
    idle_seconds: float | None = None
    log: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    stopping: CancelToken = field(default_factory=CancelToken)
    loaded: dict[str, LoadedModel] = field(default_factory=dict)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_over_budget: bool = False

    def preset_of(self, asked: str | None) -> Preset | None:
        """Return the preset that a request means; None: it means a model."""
        return self.presets.get(self.shown(asked))

    def shown(self, asked: str | None) -> str:
        """Return the name that the answer to a request gives: that of the request, of a preset as well."""
        return self.usual if (asked or "") in USUAL_NAMES else str(asked)

    def name_of(self, asked: str | None) -> str:
        """Return the name of the model that a request means.

        Raises:
            HTTPFailure: there is none of that name.
        """
        preset = self.preset_of(asked)
        name = self.shown(asked) if preset is None else preset.model
        # Names alone: a request opens no path of its choice.
        if name not in self.loaded and name not in (known := self.packages()):
            names = ", ".join(sorted(known)) or "none"
            what = f"There is no model {name[:80]!r} on this server. Its models: {names:.600}."
            raise HTTPFailure(404, what, param="model", code="model_not_found")
        return name

    @asynccontextmanager
    async def using(self, asked: str | None) -> AsyncGenerator[LoadedModel]:
        """Return a model that stays loaded while a block runs; others may have to go for it.

        Raises:
            HTTPFailure: there is none of that name, or no room for it.
        """
        name = self.name_of(asked)
        if name not in self.loaded:
            try:
                await self.load(name)
            except EdgeRTError as error:
                self.log(f"{name} is not loaded: {error}")
                raise self._not_loaded(name, error) from error
        # Nothing was awaited since: it cannot have been unloaded.
        entry = self.loaded[name]
        entry.users += 1
        try:
            yield entry
        finally:
            entry.users -= 1
            entry.used = self.clock()
            self._tell_budget(entry)

    async def load(self, name: str) -> None:
        """Load a model, unless it is loaded.

        Raises:
            EdgeRTError: it cannot be loaded.
        """
        async with self._changing:
            if name not in self.loaded:
                await self._load(name)

    def _not_loaded(self, name: str, error: EdgeRTError) -> HTTPFailure:
        if isinstance(error, MemoryBudgetExceeded) and self.loaded:
            what = f"The memory that {name} needs is in use by other models. Try again when they have answered."
            return HTTPFailure(503, what, code="overloaded", retry_after=5 * RETRY_SECONDS)
        if isinstance(error, MemoryBudgetExceeded):
            return HTTPFailure(503, f"{error.what} {error.numbers}", param="model", code="out_of_memory")
        # What is wrong with it may name files of this machine.
        what = f"The model {name} cannot be loaded: {type(error).__name__}. The server's log has more."
        return HTTPFailure(500, what, param="model", code="model_not_loadable")

    async def unload_idle(self) -> None:
        """Unload what was not used for long enough."""
        if self.idle_seconds is None:
            return
        async with self._changing:
            for entry in self._idle():
                # While the one before was closed, a request may have come for this one.
                if not entry.users and self.clock() - entry.used >= self.idle_seconds:
                    await self._unload(entry, "it was not used")

    async def unload(self, name: str) -> None:
        """Unload a model that nobody uses."""
        async with self._changing:
            for entry in self._idle():
                if entry.name == name:
                    await self._unload(entry, "a request has asked for it")

    async def close(self) -> None:
        """Unload all."""
        async with self._changing:
            for entry in tuple(self.loaded.values()):
                await self._unload(entry, "")

    def _idle(self) -> list[LoadedModel]:
        """Return the models that nobody uses, the one that was used last at the end."""
        return sorted((one for one in self.loaded.values() if not one.users), key=lambda one: one.used)

    async def _load(self, name: str) -> None:
        from edge_rt.package.reader import open_package

        started = time.perf_counter()
        package = await asyncio.to_thread(open_package, self.packages()[name])
        while True:
            options, plan = await asyncio.to_thread(self._planned, package)
            if not self.loaded or (plan.fits and not plan.reduced):
                break
            if not (idle := self._idle()):
                # What fits a model's context must not depend on who was busy when it was loaded.
                raise MemoryBudgetExceeded(
                    f"{name} does not fit at its own size beside models that answer.",
                    f"It would have less: {'; '.join(plan.reduced)}."
                    if plan.fits
                    else f"It needs {show_size(plan.minimum_bytes)}; {show_size(plan.budget_bytes)} are left.",
                    "Ask again when they have answered, or give a larger budget.",
                )
            await self._unload(idle[0], f"{name} needs its memory")
        loop = asyncio.get_running_loop()

        def on_takeover(choice: DeviceChoice) -> None:
            del choice  # the model has it
            # Called by the thread that computes, for which a loop that was closed is no error.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._tell_takeover, name)

        options = options.but(on_takeover=on_takeover)
        model = await asyncio.to_thread(self._open, package, options, plan)
        entry = self.loaded[name] = LoadedModel(name, model, used=self.clock())
        seconds = time.perf_counter() - started
        slots = f"{model.slots} answers at once, " if model.slots > 1 else ""
        are_left_out = self.prompts_folder is not None and options.prompt_cache is None
        prompts = "no prompts kept on disk, " if are_left_out else ""
        figures = f"{slots}{model.context_tokens} tokens of context, {prompts}{seconds:.1f} s"
        self.log(f"{name} is loaded on {model.device_choice.device} ({figures})")
        self._tell_device(entry)
        self._tell_budget(entry)
        if model.plan.reduced:
            self.log(f"{name} has less than was asked for, to fit the memory: {'; '.join(model.plan.reduced)}")
        if (why := model.plan.why_answers_wait) is not None:
            self.log(f"{name} answers 1 request at a time, not {model.plan.request.slots}: {why}")

    def _tell_device(self, entry: LoadedModel) -> None:
        """Say what there is to be said about what computes, unless it was said before."""
        choice = entry.model.device_choice
        if choice.note is not None and choice != entry.told:
            tell = self.warn if choice.has_failed else self.log
            tell(f"{entry.name}: {choice.note}")
        entry.told = choice

    def _tell_takeover(self, name: str) -> None:
        """Say that the CPU has taken the place of a GPU; before a model is there, what computes is told with it."""
        if (entry := self.loaded.get(name)) is not None:
            self._tell_device(entry)

    def _tell_budget(self, entry: LoadedModel) -> None:
        """Say once what there is to be said about the process's memory."""
        if not self._is_over_budget and (text := entry.model.over_budget) is not None:
            self._is_over_budget = True
            self.warn(text)

    def _planned(self, package: Package) -> tuple[LoadOptions, Plan]:
        """Return how a model is loaded, and the plan of it; rows that a GPU computes are not kept."""
        from edge_rt.runtime.load.facts import why_rows_are_not_stored

        if self.prompts_folder is not None and why_rows_are_not_stored(package.manifest) is None:
            options = self.options.but(prompt_cache=self.prompts_folder)
            if (plan := self._plan(package, options)).device.gpu is None:
                return options, plan
        return self.options, self._plan(package, self.options)

    def _plan(self, package: Package, options: LoadOptions) -> Plan:
        from edge_rt.runtime.load.planning import plan_package

        return plan_package(package, options)

    def _open(self, package: Package, options: LoadOptions, plan: Plan) -> Model:
        from edge_rt.runtime.model import Model
        from edge_rt.system.machine import collector_paused

        with collector_paused():
            model = Model(package, options, plan)
        try:
            _warm_up(model, self.stopping, goes_on=options.on_device_error == CPU)
        except BaseException:
            model.close()
            raise
        return model

    async def _unload(self, entry: LoadedModel, why: str) -> None:
        # First, so that no request comes to have it.
        del self.loaded[entry.name]
        await asyncio.to_thread(entry.model.close)
        if why:
            self.log(f"{entry.name} is unloaded: {why}")


def _warm_up(model: Model, cancel: CancelToken, *, goes_on: bool) -> None:
    """Compute with a model on a GPU, whose driver may compile kernels in the first passes that need them.

    Args:
        goes_on: whether the CPU goes on where the GPU fails.

    Raises:
        EdgeRTError: the GPU has failed, and the CPU does not go on.
    """
    if model.device is None or cancel.cancelled:
        return
    try:
        # As drafts are verified: the most likely tokens of all rows, of more than are measured, too.
        with model.passes() as (runner, cache), model.measured_costs.passes(runner) as run:
            most = min(_WARMING[0], cache.largest_pass, model.logit_rows or _WARMING[0])
            for rows in sorted({*model.measured_costs.grid[0], most}):
                if not cancel.cancelled:
                    run(rows, 0)
    except DEVICE_FAILURES:
        if not goes_on:
            raise
    for count in _WARMING:
        if count < model.context_tokens:
            # All begin alike, as rows that answers share may have to be copied; the rest is new, or it would be shared.
            tokens = [1] + [count % model.package.manifest.model.vocab_size] * (count - 1)
            model.generate(tokens, max_tokens=1, cancel=cancel)
    model.reset()
