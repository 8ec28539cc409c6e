"""What each format of the KV cache costs and gives: perplexity and top-1 against f16, bytes per token, time of a pass.

Text is held text: the prompts themselves, and the model's greedy answers to them, written with an f16 cache. Windows
of it are computed by the engine, every token teacher-forced, and formats are compared token by token (intervals:
bootstrap over blocks of 64 neighbours). Passes of all formats alternate in one process. Prompts: a JSON-lines file
whose entries hold ``turns``, such as Spec-Bench's question.jsonl (https://github.com/hemingkx/Spec-Bench)::

    python benchmarks/kv_quality.py --package PACKAGE --prompts question.jsonl --answers answers.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from alternating import bootstrap
from kv_stats import mean_interval, perplexity, perplexity_ratio
from kv_text import ANSWERS, PROMPTS, Window, chat_windows, cut, read_turns, read_windows, text_windows, write_windows

import edge_rt
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package

BASELINE = "f16"
PASS_ROWS, PASS_LOGITS = 256, 64
"""Rows of a pass, and how many of them want logits, at most. In the native op profile the bits depend on neither."""
ANSWER_TOKENS = 256
ROWS = (1, 8)
DEPTHS = (512, 2048, 8192)
SOURCES = {"all": (PROMPTS, ANSWERS), PROMPTS: (PROMPTS,), ANSWERS: (ANSWERS,)}


def formats_of(package: Path, wanted: Sequence[str] | None) -> list[str]:
    """Return the formats that the package has, and this version runs, in the table's order."""
    manifest = open_package(package).manifest
    usable = [name for name in KV_FORMAT if name in manifest.kv_formats and name in KV_FORMATS[manifest.op_profile]]
    missing = sorted(set(wanted or ()) - set(usable))
    if missing:
        sys.exit(f"{package} has no {', '.join(missing)}; it has {', '.join(usable)}.")
    chosen = [name for name in usable if wanted is None or name in wanted]
    if BASELINE not in usable:
        sys.exit(f"{package} has no {BASELINE}, which all formats are compared with.")
    return [BASELINE, *(name for name in chosen if name != BASELINE)]


def make_windows(arguments: argparse.Namespace) -> list[Window]:
    """Return windows of prompts and of answers, half of the tokens each as far as the file goes."""
    turns = read_turns(arguments.prompts)
    with edge_rt.load(arguments.package, threads=arguments.threads, kv=BASELINE) as model:
        text = "\n\n".join(message for messages in turns for message in messages)
        texts = text_windows(model.tokenizer.encode_text(text), arguments.window, arguments.tokens // 2)
        answers = read_answers(arguments.answers)
        chats, counted = [], 0
        for messages in turns:
            if counted >= arguments.tokens // 2 + arguments.window:
                break
            chat = [{"role": "user", "content": messages[0]}]
            prompt = model.tokenizer.encode_rendered(model.render(chat))
            if len(prompt) + ANSWER_TOKENS > arguments.window:
                continue
            if messages[0] not in answers:
                result = model.generate(chat, temperature=0, max_tokens=ANSWER_TOKENS, repetition_guard=False)
                answers[messages[0]] = list(result.token_ids)
            chats.append((prompt, answers[messages[0]]))
            counted += len(answers[messages[0]])
    if arguments.answers is not None:
        lines = (json.dumps({"prompt": prompt, "answer_ids": ids}) for prompt, ids in answers.items())
        arguments.answers.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [*texts, *chat_windows(chats, arguments.window, arguments.tokens // 2)]


def read_answers(path: Path | None) -> dict[str, list[int]]:
    """Return prompt -> token ids of the answers written earlier."""
    if path is None or not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {entry["prompt"]: entry["answer_ids"] for entry in entries}


def judge(model: edge_rt.Model, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return negative log-likelihoods of the window's tokens that count, in nats, and the most likely tokens there."""
    losses, tops = [], []
    most = min(PASS_LOGITS, model.logit_rows or PASS_LOGITS)
    with model.passes() as (target, cache):
        cache.truncate(0)
        for begin, end, wanted in cut(window, PASS_ROWS, most):
            piece = window.ids[begin:end]
            with cache.reserve(len(piece)) as rows:
                local = [index - begin for index in wanted] or [len(piece) - 1]
                outputs = target.forward(piece, rows.start, len(local), logit_rows=local)
                rows.commit(piece)
            if not wanted:
                continue
            targets = [window.ids[index + 1] for index in wanted]
            losses.append(log_sum_exp(outputs) - outputs.logits[np.arange(len(local)), targets])
            tops.append(outputs.logits.argmax(axis=1) if outputs.top is None else outputs.top.ids[:, 0].copy())
    return np.concatenate(losses), np.concatenate(tops)


def log_sum_exp(outputs: Any) -> np.ndarray:
    """Return it of every row of logits, float64 ``[rows]``; native graphs have computed it."""
    if outputs.top is not None:
        return outputs.top.log_sum_exp.astype(np.float64)
    largest = outputs.logits.max(axis=1, keepdims=True)
    return np.log(np.exp(outputs.logits - largest).sum(axis=1, dtype=np.float64)) + largest[:, 0]


def measure_quality(arguments: argparse.Namespace, formats: Sequence[str], windows: Sequence[Window]) -> dict[str, Any]:
    """Return per format and source what became of the text."""
    judged: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    ctx = max(len(window.ids) for window in windows)
    for name in formats:
        started = time.perf_counter()
        with edge_rt.load(arguments.package, threads=arguments.threads, kv=name, ctx=ctx, spec="off") as model:
            judged[name] = [judge(model, window) for window in windows]
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return {
        name: {source: quality(judged[name], judged[BASELINE], windows, of) for source, of in SOURCES.items()}
        for name in formats
    }


def quality(
    found: Sequence[Any], base: Sequence[Any], windows: Sequence[Window], sources: Sequence[str]
) -> dict[str, Any]:
    """Compare a format with the baseline on the windows of some sources."""
    chosen = [index for index, window in enumerate(windows) if window.source in sources]
    losses, exact = ([one[index][0] for index in chosen] for one in (found, base))
    same = [found[index][1] == base[index][1] for index in chosen]
    ratio = perplexity_ratio(losses, exact)
    agreement = mean_interval([window.astype(np.float64) for window in same])
    return {
        "tokens": sum(len(window) for window in losses),
        "perplexity": perplexity(losses),
        "perplexity_ratio": [ratio.value, ratio.low, ratio.high],
        "change": ratio.percent_change(),
        "top1_agreement": [agreement.value, agreement.low, agreement.high],
    }


def measure_speed(arguments: argparse.Namespace, formats: Sequence[str], text: Sequence[int]) -> dict[str, Any]:
    """Return format -> "rows@depth" -> milliseconds of every round, the formats alternated within a round."""
    trained = open_package(arguments.package).manifest.model.context_length
    ctx = min(trained, max(arguments.depths) + max(ROWS) + 1)
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in formats}
    models = {
        name: edge_rt.load(arguments.package, threads=arguments.threads, kv=name, ctx=ctx, spec="off")
        for name in formats
    }
    ids = [text[index % len(text)] for index in range(ctx)]
    filled = 0
    for depth in sorted(arguments.depths):
        # The last rows of the longest context are the passes'.
        reached = min(depth, ctx - max(ROWS) - 1)
        for model in models.values():
            fill(model, ids[:reached], filled)
        filled = reached
        for _ in range(arguments.rounds):
            for rows in ROWS:
                for name, model in models.items():
                    with model.passes() as (target, _):
                        # The first pass wakes threads, and finds another format's data in the caches.
                        target.forward(ids[:rows], reached, 1)
                        started = time.perf_counter()
                        target.forward(ids[:rows], reached, rows)
                        elapsed = 1e3 * (time.perf_counter() - started)
                    samples[name].setdefault(f"{rows}@{depth}", []).append(elapsed)
    for model in models.values():
        model.close()
    return samples


def fill(model: edge_rt.Model, ids: Sequence[int], start: int) -> None:
    """Compute ``ids`` from ``start`` on into the cache."""
    with model.passes() as (target, cache):
        for begin in range(start, len(ids), model.prefill_chunk):
            piece = list(ids[begin : begin + model.prefill_chunk])
            with cache.reserve(len(piece)) as rows:
                target.forward(piece, rows.start, 1)
                rows.commit(piece)


def speed_of(samples: dict[str, dict[str, list[float]]], name: str) -> dict[str, Any]:
    """Return "rows@depth" -> median milliseconds and their interval, and times as fast as the baseline."""
    report = {}
    for case, times in samples[name].items():
        faster = [base / own for base, own in zip(samples[BASELINE][case], times, strict=True)]
        low, high = bootstrap(times)
        faster_low, faster_high = bootstrap(faster)
        report[case] = {
            "milliseconds": [float(np.median(times)), low, high],
            "times_as_fast": [float(np.median(faster)), faster_low, faster_high],
        }
    return report


def token_bytes(package: Path, name: str) -> int:
    """Return the bytes of one token in all layers."""
    model = open_package(package).manifest.model
    return model.num_layers * KV_FORMAT[name].token_bytes(model.num_kv_heads, model.head_dim)


def table(report: dict[str, Any]) -> str:
    """Return one markdown table of everything."""
    cases = list(next(iter(report["formats"].values())).get("speed", {}))
    head = [
        "format",
        "bytes a token",
        "of f16's",
        "perplexity",
        "change, all text",
        "on prompts",
        "on answers",
        "top-1 as f16's",
    ]
    heads = [
        *head,
        *("{} row{} at {}, ms".format(r, "s" if r != "1" else "", d) for r, d in (c.split("@") for c in cases)),
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    full = report["formats"][BASELINE]["bytes_per_token"]
    for name, found in report["formats"].items():
        of = found["quality"]
        agreement = "{:.2%} ({:.2%}-{:.2%})".format(*of["all"]["top1_agreement"])
        cells = [name, str(found["bytes_per_token"]), f"{found['bytes_per_token'] / full:.3f}"]
        cells += [f"{of['all']['perplexity']:.4f}", *(of[source]["change"] for source in SOURCES), agreement]
        if name == BASELINE:
            cells[4:] = [""] * 4
        for case in cases:
            milliseconds = "{:.2f} ({:.2f}-{:.2f})".format(*found["speed"][case]["milliseconds"])
            cells.append(f"{milliseconds}, x{found['speed'][case]['times_as_fast'][0]:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", type=Path, required=True)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompts", type=Path, help="JSON lines with turns")
    text.add_argument("--windows", type=Path, help="windows written earlier")
    parser.add_argument("--answers", type=Path, help="file of greedy answers: read, and missing ones are added")
    parser.add_argument("--write-windows", type=Path, help="write the windows to this file")
    parser.add_argument("--tokens", type=int, default=20000, help="tokens to predict, about")
    parser.add_argument("--window", type=int, default=2048, help="tokens of a window, at most")
    parser.add_argument("--kv", nargs="+", help="formats; all that the package has, if left out")
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS))
    parser.add_argument("--rounds", type=int, default=40, help="of passes for speed; 0 leaves speed out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures, and every time measured, to this file")
    arguments = parser.parse_args()

    formats = formats_of(arguments.package, arguments.kv)
    windows = read_windows(arguments.windows) if arguments.windows else make_windows(arguments)
    if arguments.write_windows:
        write_windows(windows, arguments.write_windows)
    found = measure_quality(arguments, formats, windows)
    samples = measure_speed(arguments, formats, windows[0].ids) if arguments.rounds else {}
    report: dict[str, Any] = {"package": str(arguments.package), "windows": len(windows), "formats": {}}
    for name in formats:
        report["formats"][name] = {"bytes_per_token": token_bytes(arguments.package, name), "quality": found[name]}
        if samples:
            report["formats"][name]["speed"] = speed_of(samples, name)
    tokens = found[BASELINE]["all"]["tokens"]
    print(f"{tokens} tokens of {len(windows)} windows\n\n{table(report)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, "samples": samples}, indent=1))


if __name__ == "__main__":
    main()
