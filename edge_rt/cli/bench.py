"""``edge-rt bench``: how fast a model is on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_rt.cli.console import Terminal, gibibytes, number
from edge_rt.cli.interrupt import run_in_background
from edge_rt.cli.loading import load_model, obtain_package
from edge_rt.cli.options import (
    ConfigOption,
    CtxOption,
    DeviceOption,
    IsaOption,
    JsonOption,
    KvOption,
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

if TYPE_CHECKING:
    from edge_rt.runtime.benchmark import BenchReport


def bench(
    model: ModelOption = None,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", min=1, help="Samples of every figure.")] = 5,
    prompt_sizes: Annotated[
        list[int] | None,
        typer.Option("--pp", metavar="N", min=1, help="Tokens of a prompt; repeatable.", show_default="128 and 512"),
    ] = None,
    generated: Annotated[int, typer.Option("--tg", metavar="N", min=1, help="Tokens to generate.")] = 128,
    depth: Annotated[
        int, typer.Option("-d", "--depth", metavar="N", min=1, help="Tokens before the row-cost passes.")
    ] = 128,
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
    """Measure prompt and generation speed, time to first token, and the cost of a pass over several rows."""
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    flags = ModelFlags(model, ctx, threads, device, store, config, offline, kv_type, isa)
    _, package = obtain_package(terminal, flags)
    sizes = tuple(prompt_sizes) if prompt_sizes else (128, 512)

    with load_model(package, flags) as loaded:

        def work() -> BenchReport:
            from edge_rt.runtime.benchmark import run_benchmark

            def tell(stage: str) -> None:
                terminal.note(f"measuring: {stage}", "dim")

            return run_benchmark(
                loaded, repetitions=repetitions, prompt_sizes=sizes, generate=generated, depth=depth, on_progress=tell
            )

        report, facts = run_in_background(work), loaded.describe()
    if json:
        terminal.document({**report.to_json(), "repetitions": repetitions, "model": facts})
    else:
        _print(terminal, report, facts)
    return 0


def _print(terminal: Terminal, report: BenchReport, facts: Mapping[str, Any]) -> None:
    """Write the table in llama-bench's form, ready to be pasted."""
    size, parameters = gibibytes(facts["weights_bytes"]), f"{facts['parameters'] / 1e6:.2f} M"
    backend = f"ONNX Runtime {facts['onnxruntime']} {facts['device']}, {facts['op_profile']}"
    if facts["isa"] is not None:
        backend += f" {facts['isa']}"
    header = ("model", "size", "params", "backend", "threads", "test", "t/s")
    rows = [
        (facts["model"], size, parameters, backend, str(facts["threads"]), test, f"{mean:.2f} ± {deviation:.2f}")
        for test, mean, deviation in report.rows()
    ]
    _markdown(terminal, [header, *rows], right=(1, 2, 4, 5, 6))
    document = report.to_json()
    costs = document["row_cost_ms"]
    base = next(iter(costs.values()))
    terminal.line()
    passes = [(count, f"{ms:.2f}", f"{ms / base:.2f}x") for count, ms in costs.items()]
    _markdown(terminal, [("rows of one pass", "ms", "relative"), *passes], right=(0, 1, 2))
    terminal.line()
    terminal.line(f"time to first token, 128 tokens of prompt: {number(document['ttft_ms'])} ms")
    terminal.line(f"peak memory: {gibibytes(document['peak_bytes'])}")
    terminal.note("Choosing the most likely token is part of tg; encoding text is not. Row costs are medians.", "dim")


def _markdown(terminal: Terminal, rows: Sequence[tuple[str, ...]], *, right: tuple[int, ...]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    rule = tuple("-" * (width - 1) + ":" if index in right else "-" * width for index, width in enumerate(widths))
    for row in (rows[0], rule, *rows[1:]):
        cells = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        terminal.line(f"| {' | '.join(cells)} |")
