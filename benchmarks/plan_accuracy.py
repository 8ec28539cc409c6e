"""Planned against measured peak memory, over a grid of contexts, cache formats, speculation and budgets.

Each line is one run of ``edge-rt profile --json``: a fresh process is planned, loaded, driven to the plan's limits, and
its high-water mark of resident memory is read. Every setting is run with two budgets: the smallest that its plan calls
sufficient, and a comfortable one, 10 % more than everything wanted takes. Finished runs are kept in a file; started
again, the script goes on from there::

    python benchmarks/plan_accuracy.py --package my-package --package another --state accuracy.jsonl
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from edge_rt.memory.shape import shape_of
from edge_rt.package.reader import open_package

MIB = 1 << 20
LEAST_ERROR, MOST_ERROR = -0.03, 0.06
TOLERATED_BYTES = 8 * MIB
PROGRAM = [sys.executable, "-c", "import sys; from edge_rt.cli.main import main; sys.exit(main())"]
UNLIMITED = 1 << 40


def budget_of(setting: dict[str, Any]) -> int:
    """Return the smallest budget for a setting, or a comfortable one, in bytes, as the command line plans it."""
    document, done = call("plan", setting, UNLIMITED)
    if "minimum_bytes" not in document:
        sys.exit(f"No plan for {setting}: {done.stderr[-500:]}")
    total, minimum = int(document["total_bytes"]), int(document["minimum_bytes"])
    return minimum if setting["budget"] == "minimum" else round(1.1 * total)


def call(
    verb: str, setting: dict[str, Any], budget: int, threads: int | None = None
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run a command for a setting, and return what it prints."""
    command = [*PROGRAM, verb, "-m", setting["package"], "--json", "--ctx", str(setting["ctx"])]
    command += ["--kv-type", setting["kv"], "--spec", setting["spec"], "--memory", str(budget)]
    if verb == "profile":
        command.append("--quiet")
    if verb == "profile" and threads is not None:
        command += ["--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout), done
    except ValueError:
        sys.exit(f"{' '.join(command[3:])} ended with {done.returncode}: {done.stderr[-500:]}")


def grid(package: Path, contexts: list[int], formats: list[str], specs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the settings of a package that it can be run with."""
    opened = open_package(package)
    shape = shape_of(opened.manifest, opened.id)
    for ctx, kv, spec, kind in product(contexts, formats, specs, ("minimum", "comfortable")):
        if ctx > shape.model.context_length or kv not in shape.kv_formats:
            print(f"left out: {package.name} cannot be run with context {ctx} and cache {kv}", file=sys.stderr)
            continue
        yield {
            "package": str(package), "package_id": opened.id, "ctx": ctx, "kv": kv, "spec": spec, "budget": kind
        }  # fmt: skip


def run(setting: dict[str, Any], threads: int | None) -> dict[str, Any]:
    """Profile one setting."""
    document, done = call("profile", setting, setting["budget_bytes"], threads)
    kept = ("planned_peak_bytes", "measured_peak_bytes", "relative_error", "exceeded", "terms", "choice", "error")
    return {"exit_code": done.returncode, **{name: document[name] for name in kept if name in document}}


def is_good(result: dict[str, Any]) -> bool:
    """Return whether the prediction is as near as is asked for, and the budget was kept."""
    difference = result["planned_peak_bytes"] - result["measured_peak_bytes"]
    share = difference / result["measured_peak_bytes"]
    is_near = LEAST_ERROR <= share <= MOST_ERROR or abs(difference) <= TOLERATED_BYTES
    return is_near and not result["exceeded"]


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of the results in Markdown."""
    yield "| package | context | cache | speculation | budget | MiB | planned | measured | error | kept |"
    yield "|---|---:|---|---|---|---:|---:|---:|---:|---|"
    for result in results:
        about = (
            f"| {Path(result['package']).name} | {result['ctx']} | {result['kv']} | {result['spec']} | "
            f"{result['budget']} | {result['budget_bytes'] / MIB:.1f} |"
        )
        if "measured_peak_bytes" not in result:
            yield f"{about} | | | exit {result['exit_code']} |"
            continue
        planned, measured = result["planned_peak_bytes"] / MIB, result["measured_peak_bytes"] / MIB
        mark = "yes" if not result["exceeded"] else "NO"
        error = f"{100 * result['relative_error']:+.1f} % ({planned - measured:+.1f})"
        yield f"{about} {planned:.1f} | {measured:.1f} | {error}{'' if is_good(result) else ' *'} | {mark} |"


def summary(results: list[dict[str, Any]]) -> str:
    """Return the worst figures in a line."""
    measured = [result for result in results if "measured_peak_bytes" in result]
    errors = [result["relative_error"] for result in measured]
    return (
        f"{len(results)} runs, {len(results) - len(measured)} of them failed; error {100 * min(errors):+.1f} % to "
        f"{100 * max(errors):+.1f} %; {sum(not is_good(result) for result in measured)} not as near as "
        f"{100 * LEAST_ERROR:+.0f} %/{100 * MOST_ERROR:+.0f} % or {TOLERATED_BYTES // MIB} MiB (*); "
        f"budget exceeded {sum(result['exceeded'] for result in measured)} times"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument("--ctx", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--kv", nargs="+", default=["f16", "int8", "int4"])
    parser.add_argument("--spec", nargs="+", default=["off", "auto"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--state", type=Path, required=True, help="file of JSON lines with the finished runs")
    args = parser.parse_args()
    keys = ("package_id", "ctx", "kv", "spec", "budget", "budget_bytes")
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    if args.state.exists():
        for line in args.state.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            kept[tuple(entry[key] for key in keys)] = entry
    results = []
    for package in args.package:
        for setting in grid(package, args.ctx, args.kv, args.spec):
            setting["budget_bytes"] = budget_of(setting)
            key = tuple(setting[name] for name in keys)
            if key not in kept:
                kept[key] = {**setting, **run(setting, args.threads)}
                with args.state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(kept[key]) + "\n")
                print(list(table([kept[key]]))[-1], file=sys.stderr, flush=True)
            results.append(kept[key])
    for line in table(results):
        print(line)
    print(f"\n{summary(results)}")
    if not all("measured_peak_bytes" in result and is_good(result) for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
