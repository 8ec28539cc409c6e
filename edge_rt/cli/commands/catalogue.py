"""``edge-rt models``: small open models by name, whether they fit, how fast they would be; what a repository holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.device.names import is_local
from edge_rt.errors import ConfigError, EdgeRTError
from edge_rt.system.byte_size import human_bytes, show_size

if TYPE_CHECKING:
    from edge_rt.measure.machine import Bandwidth
    from edge_rt.memory.figures import Device
    from edge_rt.memory.plan import Plan
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.store.catalogue import CatalogueModel
    from edge_rt.store.catalogue_plan import MeasuredModel, Speed
    from edge_rt.store.config import Config
    from edge_rt.store.layout import Store

_SECONDS, _REPEATS = 0.3, 3
_WIDE = 100
_SLOW = 2.5
"""A pass that takes so many times as long as reading its weights was measured beside others, or computes slowly: 1.1
with SmolLM2-135M on an idle Zen 5, and 4 beside other programs."""
HERE, FETCHED_BEFORE, UNTRIED = "here", "fetched before", "untried"
_BASES = {
    "measured": "measured with this model here",
    "derived": "from what other models measured here",
    "bandwidth": "from how fast memory is read, measured",
    "figures": "from the figures of the device",
}


@dataclass(frozen=True)
class CatalogueFlags:
    """What is shown, and for which machine."""

    shown: Annotated[str | None, flags.SHOWN_MODEL] = None
    device: Annotated[
        str | None,
        flags.DEVICE.but(
            help="Another machine: a preset, or a saved one; 'edge-rt plan --device list' shows them.",
            shown="this machine",
            complete=flags.planned_devices,
        ),
    ] = None


def models(
    wanted: CatalogueFlags,
    load: Annotated[LoadFlags, only("memory")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """List small open models by name: whether they fit this machine, and how fast they would be; or a repository."""
    from edge_rt.store.catalogue import load_catalogue, usual_name

    terminal, catalogue = output.terminal(), load_catalogue()
    if wanted.shown is not None and (named := catalogue.get(usual_name(wanted.shown))) is None:
        return _show_repository(terminal, wanted.shown, places)
    listing = _Listing(places.open_store(), _options(load, places, wanted.device), _device(load, wanted.device))
    chosen = catalogue.values() if wanted.shown is None or named is None else (named,)
    entries = [listing.entry(model) for model in chosen]
    listing.warn(terminal)
    presets = places.configured.presets
    if output.json:
        kept = {name: asdict(preset) for name, preset in presets.items()}
        found = [entry.to_json() for entry in entries]
        terminal.document({"device": listing.device.name, "models": found, "presets": kept})
    elif wanted.shown is None:
        _print_all(terminal, entries, places.configured)
    else:
        _print_one(terminal, entries[0])
    return 0


def _options(load: LoadFlags, places: PlaceFlags, device: str | None) -> LoadOptions:
    if device is not None and is_local(device) and device != "cpu":
        raise ConfigError("Of this machine the CPU is planned for.", f"Got --device {device}.", "Leave it out.")
    return load.options(places, is_package=False).but(device="cpu")


def _device(load: LoadFlags, name: str | None) -> Device:
    from edge_rt.memory.device import PLANNING, preset, this_machine

    return this_machine(load.own_bytes + PLANNING) if is_local(name) else preset(str(name))


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue, and what it would be here.

    Attributes:
        plan: with the budget that was asked for.
        state: ``here`` (its package is in the store), ``fetched before`` (on this machine), or ``untried``.
    """

    model: CatalogueModel
    plan: Plan
    speed: Speed
    state: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a line."""
        model, plan = self.model, self.plan
        return {
            "name": model.name,
            "title": model.title,
            "repo": model.repo,
            "file": model.file,
            "weights": model.weights,
            "size_bytes": model.size_bytes,
            "license": model.license,
            "page": model.page,
            "good_at": model.good_at,
            "listed": model.listed.isoformat(),
            "context_length": model.context_length,
            "state": self.state,
            "fits": plan.fits,
            "ctx": plan.choice.ctx if plan.fits else None,
            "memory_bytes": plan.needs.both,
            "tokens_per_second": self.speed.tokens_per_second,
            "speed_basis": self.speed.basis,
        }


@dataclass(frozen=True)
class _Listing:
    store: Store
    options: LoadOptions
    device: Device

    @cached_property
    def measured(self) -> Sequence[MeasuredModel]:
        """What was measured on this machine; of another one nothing is known."""
        from edge_rt.memory.device import MACHINE
        from edge_rt.store.catalogue_plan import measured_models

        return tuple(measured_models(self.store, self.device.threads)) if self.device.name == MACHINE else ()

    @cached_property
    def bandwidth(self) -> Bandwidth | None:
        """How fast this machine reads memory, measured now, unless it was before."""
        from edge_rt.measure.machine import BUFFER_BYTES, measure_bandwidth
        from edge_rt.memory.device import MACHINE

        if self.device.name != MACHINE or self.device.is_measured:
            return None
        buffer = min(BUFFER_BYTES, self.device.available_bytes // 8)
        return measure_bandwidth(self.device.threads, buffer_bytes=buffer, seconds=_SECONDS, repeats=_REPEATS)

    def warn(self, terminal: Terminal) -> None:
        """Warn of speeds that may be far too low, as something else computed when they were measured."""
        from edge_rt.store.catalogue_plan import slowness, step_ms

        bandwidth = self.bandwidth
        for one in self.measured:
            times = slowness(one, self.device.bandwidth if bandwidth is None else bandwidth.bytes_per_second)
            if times > _SLOW:
                terminal.warn(
                    f"Passes of {one.shape.name} took {step_ms(one):.1f} ms, {times:.1f} times as long as memory "
                    "needs for them: other programs may have computed then, and the true speed be higher. "
                    "edge-rt bench --calibrate measures again."
                )
        if bandwidth is not None and bandwidth.is_disturbed:
            what = "how fast it is may be wrong" if self.measured else "it may be several times as fast as shown"
            terminal.warn(f"This machine was busy when its memory was measured: {what}.")

    def entry(self, model: CatalogueModel) -> Entry:
        from edge_rt.runtime.load.planning import plan_package
        from edge_rt.store.catalogue import read_first_fetch
        from edge_rt.store.catalogue_plan import expected_speed, foreseen_shape

        state, package = UNTRIED, None
        if self.store.has_package(model.name):
            state = HERE
            with suppress(EdgeRTError):  # `edge-rt list` says what is wrong with it
                package = self.store.read_package(self.store.package_path(model.name))
        elif read_first_fetch(self.store.root, model) is not None:
            state = FETCHED_BEFORE
        plan = None
        if package is not None:
            # It has settings of its own, such as the usual format of its cache.
            with suppress(EdgeRTError):  # a load says what is wrong with it
                plan = plan_package(package, self.options, self.device)
        if plan is None:
            plan = plan_package(foreseen_shape(model), self.options, self.device)
        device = plan.device
        if self.bandwidth is not None and not self.measured:
            # A load plans without it.
            device = replace(device, bandwidth=self.bandwidth.bytes_per_second, is_measured=True)
        package_id = None if package is None else package.id
        speed = expected_speed(plan.shape, device, self.measured, plan.choice.kv_format, package_id)
        return Entry(model, plan, speed, state)


def _print_all(terminal: Terminal, entries: Sequence[Entry], config: Config) -> None:
    rows = [("NAME", "DOWNLOAD", "MEMORY", "CONTEXT", "TOK/S", "LICENCE", "", "GOOD AT")]
    rows += [_row(entry) for entry in entries]
    if terminal.out_is_tty and terminal.columns() < _WIDE:
        # What a narrow screen has room for: name, memory, context and speed.
        terminal.table([(row[0], *row[2:5]) for row in rows], right=(1, 2, 3))
    else:
        terminal.table(rows, right=(1, 2, 3, 4))
    basis = entries[0].speed.basis if len({entry.speed.basis for entry in entries}) == 1 else "derived"
    terminal.note()
    terminal.note(f"TOK/S: plain decoding, {_BASES[basis]}; speculation often adds a half.", "dim")
    terminal.note("CONTEXT: what fits, of what the model was made for; never more than 8K unless --ctx asks.", "dim")
    terminal.note("edge-rt pull NAME fetches one, edge-rt models NAME tells more of it.", "dim")
    for name, preset in config.presets.items():
        terminal.note(f"preset {name}: {preset.model}", "dim")


def _row(entry: Entry) -> tuple[str, str, str, str, str, str, str, str]:
    model, plan = entry.model, entry.plan
    context = f"{_thousands(plan.choice.ctx)} of {_thousands(model.context_length)}" if plan.fits else "does not fit"
    return (
        model.name,
        human_bytes(model.size_bytes),
        show_size(plan.needs.both),
        context,
        _whole(entry.speed) if plan.fits else "-",
        model.license,
        entry.state,
        model.good_at,
    )


def _whole(speed: Speed) -> str:
    tokens = speed.tokens_per_second
    return f"{tokens:.0f}" if tokens >= 1 else "<1"


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def _print_one(terminal: Terminal, entry: Entry) -> None:
    terminal.table(list(_facts(entry)))


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    model, plan, speed = entry.model, entry.plan, entry.speed
    yield "name", model.name
    yield "title", model.title
    yield "good at", model.good_at
    yield "licence", f"{model.license} ({model.page})"
    yield "file", f"{model.reference}, seen in a listing of {model.listed}"
    yield "download", f"about {human_bytes(model.size_bytes)}, {model.weights}"
    yield "state", entry.state
    yield "memory", f"{show_size(plan.needs.both)} of {show_size(plan.budget.host)}"
    if plan.fits:
        yield "context", f"{plan.choice.ctx} of {model.context_length} tokens, cache {plan.choice.kv_format}"
        yield "speed", f"about {_whole(speed)} tokens a second, {_BASES[speed.basis]}"
    else:
        yield "fits", f"no: it needs at least {show_size(plan.minimum.host)}"


def _show_repository(terminal: Terminal, text: str, places: PlaceFlags) -> int:
    """Show which models a repository of the hub holds, and which of them would be fetched."""
    from edge_rt.errors import ModelNotFound, UnsupportedModel
    from edge_rt.store.catalogue import load_catalogue
    from edge_rt.store.hub_files import choose_files, gguf_models
    from edge_rt.store.layout import suggest
    from edge_rt.store.naming import parse_hub_reference
    from edge_rt.store.sources_hub import HubOptions, list_repository

    reference = parse_hub_reference(text)
    if reference is None:
        raise ModelNotFound(
            f"The catalogue has no {text[:80]!r}.",
            suggest(text, (), load_catalogue()),
            "'edge-rt models' lists all.",
        )
    if places.offline:
        raise ConfigError("A repository is listed by its server.", "Offline mode is on.", "Leave --offline out.")
    listing = list_repository(reference.repo, HubOptions())
    try:
        chosen = {file.name for file in choose_files(listing, reference)}
    except (ModelNotFound, UnsupportedModel) as error:
        terminal.warn(str(error))
        chosen = set()
    found = gguf_models(listing)
    if terminal.is_json:
        files = [{"file": name, "weights": weights, "size_bytes": size} for name, weights, size in found]
        document = {"repo": listing.repo, "revision": listing.revision, "license": listing.license}
        terminal.document({**document, "models": files, "chosen": sorted(chosen)})
        return 0
    rows = [("FILE", "TYPE", "SIZE", "")]
    for name, weights, size in found:
        mark = "fetched by default" if name in chosen else ""
        rows.append((name, weights or "-", "-" if size is None else human_bytes(size), mark))
    if found:
        terminal.table(rows, right=(2,))
        terminal.note(f"licence: {listing.license or 'not stated'}; another: edge-rt pull {reference.repo}:TYPE", "dim")
    else:
        terminal.line(f"{listing.repo} holds no GGUF files; fetched would be: {', '.join(sorted(chosen)) or 'nothing'}")
    return 0
