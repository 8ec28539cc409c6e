"""``edge-rt bench``: throughput and latency of a model on this machine, and the gain of speculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from edge_rt.cli.commands.bench_prompts import PromptFlags, measure, print_figures, spec_name
from edge_rt.cli.interrupt import run_in_background
from edge_rt.cli.loading import model_of_command, obtain_package
from edge_rt.cli.notices import NOT_SAVED, warn_of_profile
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal, number
from edge_rt.cli.render.stats import device_text
from edge_rt.cli.render.verify_report import markdown, print_row_costs, tell_left_out
from edge_rt.errors import ConfigError
from edge_rt.package.spec_modes import AUTO
from edge_rt.system.byte_size import counted, show_size

if TYPE_CHECKING:
    from edge_rt.measure.benchmark import BenchReport
    from edge_rt.runtime.model import Model


@dataclass(frozen=True)
class SpeedFlags:
    """What is measured without ``--prompts``; None means the default that ``--help`` shows."""

    repetitions: Annotated[int | None, flags.REPETITIONS] = None
    prompt_sizes: Annotated[list[int] | None, flags.PP] = None
    generated: Annotated[int | None, flags.TG] = None
    depth: Annotated[int | None, flags.DEPTH] = None

    def given(self) -> list[str]:
        """Return the flags that were given."""
        named = {
            "--repetitions": self.repetitions,
            "--pp": self.prompt_sizes,
            "--tg": self.generated,
            "--depth": self.depth,
        }
        return [name for name, value in named.items() if value]

    @property
    def samples(self) -> int:
        """Samples of each figure."""
        return self.repetitions or 5


@dataclass(frozen=True)
class CalibrateFlags:
    """Whether the latency of passes is measured for speculation."""

    calibrate: Annotated[bool, flags.CALIBRATE] = False


def bench(
    load: Annotated[
        ModelFlags,
        only("named", "model", "memory", "device_memory", "experts", "ctx", "threads", "device", "kv_type", "isa"),
    ],
    speed: SpeedFlags,
    costs: CalibrateFlags,
    prompts: PromptFlags,
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Measure the speed of a model on this machine: reading prompts, generating, time to the first token.

    With --prompts: measure the speed-up of speculation on the prompts of a file, against plain decoding.
    """
    terminal = output.terminal()
    _refuse_mixture(prompts, speed.given(), calibrate=costs.calibrate)
    texts = prompts.read() if prompts.prompts is not None else []
    prompts = prompts.placed(places)
    asked = load.options(places, prompts.speculation())
    name, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
    with model_of_command(terminal, package, asked) as model, model:
        facts = model.describe()
        if prompts.prompts is None:
            warn_of_profile(terminal, model, AUTO, given="--spec")
        if costs.calibrate:
            _calibrate(terminal, model, facts)
        elif prompts.prompts is not None:
            document = measure(terminal, model, texts, prompts)
            _tell_prompts(terminal, document, facts, prompts.plot, name=name)
            from edge_rt.runtime.speculation.live_costs import LiveCosts

            known = model.speculation.known_costs
            if output.verbose and isinstance(known, LiveCosts) and not terminal.is_json:
                sure = "" if known.costs.steady else ", not sure yet"
                terminal.line(f"passes, learned from {known.costs.passes}{sure}:")
                print_row_costs(terminal, known.costs)
        else:
            report = _measure_speed(terminal, model, speed)
            facts = model.describe()
            if output.json:
                terminal.document({**report.to_json(), "repetitions": speed.samples, "model": facts})
            else:
                _print(terminal, report, facts)
    return 0


def _calibrate(terminal: Terminal, model: Model, facts: Mapping[str, Any]) -> None:
    """Measure the latency of passes on this machine, save it and show it."""
    terminal.note("measuring passes", "dim")
    measured = run_in_background(model.calibrate)
    if not model.measured_costs.is_kept:
        terminal.warn(NOT_SAVED)
    elif not measured.steady:
        terminal.warn(
            "the machine was busy, and equal passes took different times: --device auto and plans do not use this "
            "measurement. Repeat it when the machine is quiet."
        )
    if terminal.is_json:
        is_kept = model.measured_costs.is_kept
        terminal.document({"row_costs": measured.to_json(), "is_kept": is_kept, "model": facts})
    else:
        print_row_costs(terminal, measured)


def _measure_speed(terminal: Terminal, model: Model, speed: SpeedFlags) -> BenchReport:
    def tell(stage: str) -> None:
        terminal.note(f"measuring: {stage}", "dim")

    def work() -> BenchReport:
        from edge_rt.measure.benchmark import bench as measure_speed

        return measure_speed(
            model,
            repetitions=speed.samples,
            prompt_sizes=tuple(speed.prompt_sizes) if speed.prompt_sizes else (128, 512),
            generate=speed.generated or 128,
            depth=speed.depth or 128,
            on_progress=tell,
        )

    return run_in_background(work)


def _refuse_mixture(asked: PromptFlags, plain: list[str], *, calibrate: bool) -> None:
    """Refuse flags of different measurements together, because some would have no effect."""
    if asked.prompts is not None:
        kind, strange = "--prompts", [*plain, *(["--calibrate"] if calibrate else [])]
    elif calibrate:
        kind, strange = "--calibrate", [*plain, *asked.given()]
    else:
        kind, strange = "", asked.given()
    if strange:
        names = ", ".join(strange)
        if kind:
            raise ConfigError(f"{kind} does not work with {names}.", "They belong to different measurements.", "")
        raise ConfigError(f"There are no prompts for {names}.", "--prompts is missing.", "Give a file of prompts.")


def _tell_prompts(
    terminal: Terminal,
    document: dict[str, Any],
    facts: Mapping[str, Any],
    plot: Path | None,
    *,
    name: str,
) -> None:
    if plot is not None:
        from edge_rt.cli.render.plots import draw_speculation as draw

        title = (
            f"{name}, {facts['op_profile']}, cache {facts['kv_format']}, {counted(facts['threads'], 'thread')}: "
            f"{spec_name(document)}, tables {document['tables']}, temperature {document['temperature']:g}"
        )
        draw(document, plot, title=title)
        terminal.note(f"plot saved: {plot}", "dim")
    if terminal.is_json:
        terminal.document({**document, "model": facts})
    else:
        print_figures(terminal, document)
    tell_left_out(terminal, document)


def _print(terminal: Terminal, report: BenchReport, facts: Mapping[str, Any]) -> None:
    """Write the table in the format of llama-bench, ready to be pasted."""
    size, parameters = show_size(facts["weights_bytes"]), f"{facts['parameters'] / 1e6:.2f} M"
    backend = f"ONNX Runtime {facts['onnxruntime']} {device_text(facts['device'])}, {facts['op_profile']}"
    if facts["isa"] is not None:
        backend += f" {facts['isa']}"
    name = Path(facts["package"]).name
    header = ("model", "size", "params", "backend", "threads", "test", "t/s")
    rows = [
        (name, size, parameters, backend, str(facts["threads"]), test, f"{mean:.2f} ± {deviation:.2f}")
        for test, mean, deviation in report.rows()
    ]
    markdown(terminal, [header, *rows], right=(1, 2, 4, 5, 6))
    document = report.to_json()
    costs = document["row_cost_ms"]
    base = next(iter(costs.values()))
    terminal.line()
    passes = [(count, f"{ms:.2f}", f"{ms / base:.2f}x") for count, ms in costs.items()]
    markdown(terminal, [("rows of one pass", "ms", "relative"), *passes], right=(0, 1, 2))
    terminal.line()
    terminal.line(f"time to first token, 128 tokens of prompt: {number(document['ttft_ms'])} ms")
    terminal.line(f"peak memory: {show_size(document['peak_bytes'])}")
    if (reads := document.get("experts")) is not None:
        share, each = 100 * reads["hit_share"], show_size(int(reads["read_bytes_per_token"]))
        terminal.line(f"experts: {share:.0f} % were in the cache while generating, {each} read per token")
    terminal.note("tg includes choosing the most likely token, but not encoding text. Row costs are medians.", "dim")
