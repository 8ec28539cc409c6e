"""Groups of flags that commands share; each group checks and interprets its flags."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from edge_rt.cli.options import answer_flags, flags
from edge_rt.cli.options.spread import path_of
from edge_rt.cli.render.console import Terminal
from edge_rt.device.names import AUTO as AUTO_DEVICE, RAISES
from edge_rt.errors import ConfigError, InputError
from edge_rt.package.spec_modes import (
    AUTO,
    MODEL,
    NO_DRAFTER,
    USED_BY,
    drafting_package,
    mode_of,
    require_draft_max,
    require_mode,
    require_rule,
)
from edge_rt.runtime.config import GenerationConfig
from edge_rt.system.files import read_text
from edge_rt.system.process_memory import own_bytes

if TYPE_CHECKING:
    from edge_rt.cli.notices import CalibrationNotices
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.runtime.speculation.adaptive import Trace
    from edge_rt.store.config import Config, Preset
    from edge_rt.store.layout import Store


@dataclass(frozen=True)
class OutputFlags:
    """What is written, and how."""

    json: Annotated[bool, flags.JSON] = False
    quiet: Annotated[bool, flags.QUIET] = False
    verbose: Annotated[bool, flags.VERBOSE] = False
    no_color: Annotated[bool, flags.NO_COLOR] = False

    def terminal(self, *, is_json: bool = False) -> Terminal:
        """Return the terminal of a command; with ``is_json`` it writes JSON even without the flag."""
        return Terminal(quiet=self.quiet, verbose=self.verbose, no_color=self.no_color, is_json=self.json or is_json)


@dataclass(frozen=True)
class AnswerFlags(OutputFlags):
    """What is written besides answers."""

    stats: Annotated[bool | None, flags.STATS] = None


@dataclass(frozen=True)
class PlaceFlags:
    """Where models are stored, and whether the network may be used."""

    offline: Annotated[bool, flags.OFFLINE] = False
    store: Annotated[Path | None, flags.STORE] = None
    config: Annotated[Path | None, flags.CONFIG] = None

    @property
    def config_file(self) -> Path | None:
        """The configuration file given with ``--config``; None for the user's."""
        return None if self.config is None else self.config.expanduser()

    @cached_property
    def configured(self) -> Config:
        """Content of the configuration file, which a command reads once; errors as in ``open_store``."""
        from edge_rt.store.config import load_config

        self._require_config()
        return load_config(self.config_file)

    def open_store(self) -> Store:
        """Return the store from the flags, else from the configuration file, else the platform's default."""
        from edge_rt.store.layout import open_store

        self._require_config()
        return open_store(self.store) if self.store is not None else open_store(config=self.configured)

    def _require_config(self) -> None:
        if self.config_file is not None and not self.config_file.exists():
            raise ConfigError(f"{self.config} does not exist.", "It was given with --config.", "Check the path.")


def configured(groups: Iterable[object]) -> Config | None:
    """Return the configuration of a command with these groups of flags; None if it has none."""
    return next((group.configured for group in groups if isinstance(group, PlaceFlags)), None)


def preset_of(groups: Iterable[object]) -> Preset | None:
    """Return the preset of the configuration file that a command's model argument names; None if it names a model."""
    groups = tuple(groups)
    config, load = configured(groups), next((group for group in groups if isinstance(group, LoadFlags)), None)
    if config is None or load is None or not config.presets:
        return None
    return config.presets.get(load.given or config.model or "")


def place_spec(spec: str, places: PlaceFlags) -> str:
    """Return a mode of speculation whose package, if it names one by its name in the store, is named by its folder."""
    asked = drafting_package(spec)
    if asked is None:
        return spec
    from edge_rt.store.resolve import resolve

    resolved = resolve(asked, places.open_store())
    if resolved.kind != "package" or resolved.path is None:
        raise _no_package(asked)
    return f"{MODEL}:{resolved.path}"


def place_drafter(drafter: Path | None, spec: str | None, places: PlaceFlags) -> Path | None:
    """Return ``--drafter``; a package that is named by its name in the store is named by its folder.

    Only ``auto`` takes a package. A folder goes before a name. What is neither is left as it is: the error for it comes
    from where trained drafters are opened.
    """
    if drafter is None or str(drafter) == NO_DRAFTER or (spec or AUTO) != AUTO or path_of(str(drafter)).exists():
        return drafter
    from edge_rt.store.resolve import resolve

    store = places.open_store()
    try:
        resolved = resolve(drafter.as_posix(), store)
    except (ConfigError, InputError):
        return drafter
    if resolved.kind == "recipe" or (resolved.in_store and resolved.kind != "package"):
        raise _no_package(str(drafter))
    return resolved.path if resolved.kind == "package" else drafter


def _no_package(asked: str) -> ConfigError:
    return ConfigError(
        "The model that is to draft is not a package on this machine.",
        f"Got {asked!r:.80}.",
        "Fetch it with edge-rt pull, or export it with edge-rt export.",
    )


@dataclass(frozen=True)
class SpeculationFlags:
    """The mode of speculation and its inputs."""

    spec: Annotated[str | None, flags.SPEC] = None
    draft_max: Annotated[int | None, flags.DRAFT_MAX] = None
    reference: Annotated[Path | None, flags.REFERENCE] = None
    corpus: Annotated[Path | None, flags.CORPUS] = None
    drafter: Annotated[Path | None, flags.DRAFTER] = None
    accept: Annotated[str | None, answer_flags.ACCEPT] = None
    spec_trace: Annotated[Path | None, flags.SPEC_TRACE] = None

    def check(self) -> None:
        """Refuse flags that are wrong or have no effect together, before a model is fetched or loaded."""
        self.check_planned()
        mode = self.spec or AUTO
        if mode == "reference" and self.reference is None:
            raise ConfigError(
                "--spec reference has nothing to copy from.", "There is no --reference.", "Give --reference FILE."
            )
        if self.accept is not None:
            require_rule(self.accept, mode)

    def check_planned(self) -> None:
        """Refuse flags that are wrong or that the mode does not use; these are the checks that a plan needs."""
        if self.spec is not None:
            require_mode(self.spec)
        if self.draft_max is not None:
            require_draft_max(self.draft_max)
        mode, given = self.spec or AUTO, self.given()
        for flag, modes in USED_BY.items():
            if given[flag] is not None and mode_of(mode) not in modes:
                raise ConfigError(
                    f"{flag} is not used with --spec {mode}.", f"It is used with {', '.join(modes)}.", "Leave one out."
                )

    def placed_spec(self, places: PlaceFlags) -> str | None:
        """Return the mode of speculation; see ``place_spec``."""
        return None if self.spec is None else place_spec(self.spec, places)

    def placed_drafter(self, places: PlaceFlags) -> Path | None:
        """Return what drafts, a package by its folder; see ``place_drafter``."""
        return place_drafter(self.drafter, self.spec, places)

    def given(self) -> dict[str, object]:
        """Return the value of every flag that only some modes use; None for one that was not given."""
        return {
            "--reference": self.reference,
            "--corpus": self.corpus,
            "--drafter": self.drafter,
            "--draft-max": self.draft_max,
            "--spec-trace": self.spec_trace,
        }

    def applied_to(self, options: GenerationConfig) -> GenerationConfig:
        """Return the options with the acceptance rule, and with the text of ``--reference``."""
        if self.accept is not None:
            options = options.with_options(accept=self.accept)
        if self.reference is not None:
            options = options.with_options(reference=read_text(self.reference.expanduser()))
        return options


@dataclass(frozen=True)
class LoadFlags:
    """Which model, and how it is loaded.

    Attributes:
        own_bytes: memory of this process when the command started; groups are created before large imports.
    """

    model: Annotated[str | None, flags.MODEL] = None
    memory: Annotated[str | None, flags.MEMORY] = None
    device_memory: Annotated[str | None, flags.DEVICE_MEMORY] = None
    experts: Annotated[str | None, flags.EXPERTS] = None
    ctx: Annotated[int | None, flags.CTX] = None
    threads: Annotated[int | None, flags.THREADS] = None
    device: Annotated[str | None, flags.DEVICE] = None
    on_device_error: Annotated[str | None, flags.ON_DEVICE_ERROR] = None
    kv_type: Annotated[str | None, flags.KV_TYPE] = None
    isa: Annotated[str | None, flags.ISA] = None
    prompt_cache: Annotated[Path | None, flags.PROMPT_CACHE] = None
    prompt_cache_size: Annotated[str | None, flags.PROMPT_CACHE_SIZE] = None
    usual_model: str = flags.DEFAULT_MODEL
    usual_experts: str | None = None
    usual_device: str = AUTO_DEVICE
    usual_device_memory: str | None = None
    usual_on_device_error: str = RAISES
    own_bytes: int = field(default_factory=own_bytes)

    def completed(self, groups: Iterable[object]) -> LoadFlags:
        """Return the flags with values of the preset and the configuration file for those that were not given."""
        groups = tuple(groups)
        if (config := configured(groups)) is None:
            return self
        preset = preset_of(groups)
        ctx = config.ctx if preset is None or preset.ctx is None else preset.ctx
        flags = replace(
            self,
            usual_model=config.model or self.usual_model,
            ctx=ctx if self.ctx is None else self.ctx,
            threads=config.threads if self.threads is None else self.threads,
            usual_experts=config.experts,
            usual_device=config.device or self.usual_device,
            usual_device_memory=config.device_memory,
            usual_on_device_error=config.on_device_error or self.usual_on_device_error,
        )
        if preset is None:
            return flags
        memory = preset.memory if self.memory is None else self.memory
        return replace(flags.without_model(), usual_model=preset.model, memory=memory)

    @property
    def given(self) -> str | None:
        """The model argument; None if there is none."""
        return self.model

    def without_model(self) -> LoadFlags:
        """Return the flags without a model argument."""
        return replace(self, model=None)

    @property
    def reference(self) -> str:
        """The model argument, or the usual model."""
        given = self.given
        return self.usual_model if given is None else given

    def budget_bytes(self, places: PlaceFlags) -> int | None:
        """Return the memory budget of the flag, else of the configuration file; None if there is none."""
        from edge_rt.system.byte_size import parse_size

        given = places.configured.memory if self.memory is None else self.memory
        return None if given is None else parse_size(given)

    @property
    def device_budget_bytes(self) -> int | None:
        """The budget of a GPU's own memory; None if there is none."""
        from edge_rt.system.byte_size import parse_size

        return None if self.device_memory is None else parse_size(self.device_memory)

    def options(
        self,
        places: PlaceFlags,
        speculation: SpeculationFlags | None = None,
        *,
        spec_trace: Trace | None = None,
        calibration: CalibrationNotices | None = None,
        is_package: bool = True,
        answers: bool = False,
    ) -> LoadOptions:
        """Return how the model is loaded.

        Args:
            speculation: the speculation flags; None lets the plan choose.
            calibration: told when an answer has to wait for a measurement of latency, and when that is not kept.
            is_package: whether the model is one, for which the store is asked where packages are that draft.
            answers: whether it is to answer: the configuration file says what is done where a GPU fails in an answer,
                not in a measurement.
        """
        from edge_rt.memory.device import this_machine
        from edge_rt.runtime.load.options import LoadOptions
        from edge_rt.runtime.speculation.cost_model import user_costs
        from edge_rt.system.byte_size import parse_size
        from edge_rt.system.json_files import user_cache

        drafts = speculation or SpeculationFlags()
        usual = self.usual_device_memory
        on_error = self.on_device_error or (self.usual_on_device_error if answers else RAISES)
        return LoadOptions(
            memory=self.budget_bytes(places),
            device_memory=self.device_budget_bytes,
            usual_device_memory=None if usual is None else parse_size(usual),
            experts=self.experts,
            usual_experts=self.usual_experts,
            ctx=self.ctx,
            threads=self.threads,
            device=self.usual_device if self.device is None else self.device,
            on_device_error=on_error,
            kv=self.kv_type,
            isa=self.isa,
            spec=drafts.placed_spec(places) if is_package else drafts.spec,
            draft_max=drafts.draft_max,
            corpus=drafts.corpus,
            drafter=drafts.placed_drafter(places) if is_package else drafts.drafter,
            prompt_cache=None if self.prompt_cache is None else path_of(str(self.prompt_cache)),
            prompt_cache_size=self.prompt_cache_size,
            spec_trace=spec_trace,
            on_calibrate=None if calibration is None else calibration.measuring,
            costs=user_costs(None if calibration is None else calibration.lost),
            tokenizer_readings=user_cache("tokenizers"),
            base_bytes=this_machine(self.own_bytes).base_bytes,
            spell=shlex.join,
        )


@dataclass(frozen=True)
class ModelFlags(LoadFlags):
    """Which model, also without its flag, and how it is loaded."""

    named: Annotated[str | None, flags.MODEL_ARGUMENT] = None

    @property
    def given(self) -> str | None:
        """The model argument; None if there is none."""
        if self.named is not None and " " in self.named and not path_of(self.named).exists():
            raise ConfigError(
                "That is not the name of a model.", f"Got {self.named!r:.60}.", "A prompt goes to edge-rt generate."
            )
        return one_of(self.named, self.model, "The model")

    def without_model(self) -> LoadFlags:
        """Return the flags without a model argument."""
        return replace(self, model=None, named=None)


def one_of(argument: str | None, option: str | None, name: str) -> str | None:
    """Return a value that may be given with or without its flag."""
    if argument is not None and option is not None:
        raise ConfigError(f"{name} was given twice.", f"Got {argument!r:.80} and {option!r:.80}.", "Give it once.")
    return option if argument is None else argument
