"""``edge-rt bench``: how fast a model is on this machine, and what speculation gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_rt.byte_size import show_rounded
from edge_rt.cli.baseline_memory import own_bytes
from edge_rt.cli.commands.bench_prompts import PromptFlags, measure, print_figures, spec_name
from edge_rt.cli.interrupt import run_in_background
from edge_rt.cli.loading import load_model, obtain_package
from edge_rt.cli.options import (
    ConfigOption,
    CtxOption,
    DeviceOption,
    IsaOption,
    JsonOption,
    KvOption,
    MemoryOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    OfflineOption,
    QuietOption,
    StoreOption,
    ThreadsOption,
    VerboseOption,
    make_terminal,
)
from edge_rt.cli.render.bench_table import markdown, print_row_costs
from edge_rt.cli.render.console import Terminal, number
from edge_rt.cli.render.verify_report import tell_left_out
from edge_rt.cli.speculation import CorpusOption, DraftMaxOption, SpecFlags
from edge_rt.errors import ConfigError

if TYPE_CHECKING:
    from edge_rt.measure.benchmark import BenchReport

_PROMPTS = "With --prompts"


def bench(
    model: ModelOption = None,
    repetitions: Annotated[
        int | None, typer.Option("-r", "--repetitions", min=1, help="Samples of every figure.", show_default="5")
    ] = None,
    prompt_sizes: Annotated[
        list[int] | None,
        typer.Option("--pp", metavar="N", min=1, help="Tokens of a prompt; repeatable.", show_default="128 and 512"),
    ] = None,
    generated: Annotated[
        int | None, typer.Option("--tg", metavar="N", min=1, help="Tokens to generate.", show_default="128")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "-d", "--depth", metavar="N", min=1, help="Tokens before the row-cost passes.", show_default="128"
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure what passes cost speculation here, keep it, show it."),
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            rich_help_panel=_PROMPTS,
            help="Measure what speculation gains on these: JSON lines with 'turns' or 'prompt', or a text a line.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec",
            metavar="MODE",
            rich_help_panel=_PROMPTS,
            help="auto, ngram, suffix, recycling, reference (copies from the prompt), or off.",
            show_default="auto",
        ),
    ] = None,
    draft_max: DraftMaxOption = None,
    corpus: CorpusOption = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--max-tokens",
            metavar="N",
            min=1,
            rich_help_panel=_PROMPTS,
            help="Most tokens of an answer.",
            show_default="256",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, rich_help_panel=_PROMPTS, help="Take the first N.", show_default="all"
        ),
    ] = None,
    temp: Annotated[
        float | None,
        typer.Option(
            "--temp", metavar="T", rich_help_panel=_PROMPTS, help="Temperature; 0 is greedy.", show_default="0"
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", rich_help_panel=_PROMPTS, help="Keep the likeliest tokens up to this sum.", show_default="0.95"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="S",
            rich_help_panel=_PROMPTS,
            help="Seed of the first prompt; others follow.",
            show_default="0",
        ),
    ] = None,
    cold: Annotated[
        bool,
        typer.Option("--cold", rich_help_panel=_PROMPTS, help="Empty the drafters' tables before every prompt."),
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", rich_help_panel=_PROMPTS, help="Give prompts without the chat template.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", rich_help_panel=_PROMPTS, help="Draw the figures: a .png, .svg or .pdf file."
        ),
    ] = None,
    memory: MemoryOption = None,
    ctx: CtxOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    kv_type: KvOption = None,
    isa: IsaOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Measure prompt and generation speed, time to first token, and the cost of a pass over several rows.

    With --prompts: what speculation gains on the prompts of a file, against plain decoding of the same tokens.
    """
    own = own_bytes()
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    asked = PromptFlags(prompts, limit, spec, draft_max, corpus, max_tokens, temp, top_p, seed, cold, raw, plot)
    plain = {"--repetitions": repetitions, "--pp": prompt_sizes, "--tg": generated, "--depth": depth}
    _refuse_mixture(asked, [name for name, value in plain.items() if value], calibrate=calibrate)
    texts = asked.read() if prompts is not None else []
    flags = ModelFlags(
        model,
        ctx,
        threads,
        device,
        store,
        config,
        offline,
        kv_type,
        isa,
        SpecFlags(spec, draft_max, corpus),
        memory,
        own_bytes=own,
    )
    name, package = obtain_package(terminal, flags)

    with load_model(package, flags) as loaded:
        facts = loaded.describe()
        if calibrate:
            terminal.note("measuring passes", "dim")
            costs = run_in_background(loaded.calibrate)
            is_kept = loaded.prices.is_kept
            if not is_kept:
                terminal.warn("the costs could not be kept: the first answer that speculates will measure them again.")
        elif prompts is not None:
            document = measure(terminal, loaded, texts, asked)
        else:

            def work() -> BenchReport:
                from edge_rt.measure.benchmark import run_benchmark

                def tell(stage: str) -> None:
                    terminal.note(f"measuring: {stage}", "dim")

                return run_benchmark(
                    loaded,
                    repetitions=repetitions or 5,
                    prompt_sizes=tuple(prompt_sizes) if prompt_sizes else (128, 512),
                    generate=generated or 128,
                    depth=depth or 128,
                    on_progress=tell,
                )

            report, facts = run_in_background(work), loaded.describe()
    if calibrate:
        if json:
            terminal.document({"row_costs": costs.to_json(), "is_kept": is_kept, "model": facts})
        else:
            print_row_costs(terminal, costs)
    elif prompts is not None:
        _tell_prompts(terminal, document, facts, plot, name=name, json=json)
    elif json:
        terminal.document({**report.to_json(), "repetitions": repetitions or 5, "model": facts})
    else:
        _print(terminal, report, facts)
    return 0


def _refuse_mixture(asked: PromptFlags, plain: list[str], *, calibrate: bool) -> None:
    """Refuse flags of one measurement with another one: they would be dropped.

    Raises:
        ConfigError: with the flags.
    """
    if asked.prompts is not None:
        kind, strange = "--prompts", [*plain, *(["--calibrate"] if calibrate else [])]
    elif calibrate:
        kind, strange = "--calibrate", [*plain, *asked.given()]
    else:
        kind, strange = "", asked.given()
    if strange:
        names = ", ".join(strange)
        if kind:
            raise ConfigError(f"{kind} does not go with {names}.", "They are measurements of different kinds.", "")
        raise ConfigError(f"There are no prompts for {names}.", "--prompts is missing.", "Give a file of prompts.")


def _tell_prompts(
    terminal: Terminal,
    document: dict[str, Any],
    facts: Mapping[str, Any],
    plot: Path | None,
    *,
    name: str,
    json: bool,
) -> None:
    if plot is not None:
        from edge_rt.cli.render.speculation_plot import draw

        title = (
            f"{name}, {facts['op_profile']}, cache {facts['kv_format']}, {facts['threads']} threads: "
            f"{spec_name(document)}, tables {document['tables']}, temperature {document['temperature']:g}"
        )
        draw(document, plot, title=title)
        terminal.note(f"drawn: {plot}", "dim")
    if json:
        terminal.document({**document, "model": facts})
    else:
        print_figures(terminal, document)
    tell_left_out(terminal, document)


def _print(terminal: Terminal, report: BenchReport, facts: Mapping[str, Any]) -> None:
    """Write the table in llama-bench's form, ready to be pasted."""
    size, parameters = show_rounded(facts["weights_bytes"]), f"{facts['parameters'] / 1e6:.2f} M"
    backend = f"ONNX Runtime {facts['onnxruntime']} {facts['device']}, {facts['op_profile']}"
    if facts["isa"] is not None:
        backend += f" {facts['isa']}"
    header = ("model", "size", "params", "backend", "threads", "test", "t/s")
    rows = [
        (facts["model"], size, parameters, backend, str(facts["threads"]), test, f"{mean:.2f} ± {deviation:.2f}")
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
    terminal.line(f"peak memory: {show_rounded(document['peak_bytes'])}")
    terminal.note("Choosing the most likely token is part of tg; encoding text is not. Row costs are medians.", "dim")
