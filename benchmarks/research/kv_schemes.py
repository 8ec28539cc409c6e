"""Which way to store keys and values keeps most quality for its bytes: a simulation, in float32 on the checkpoint.

Perplexity of held text, teacher-forced, every token seeing the cache as decoding leaves it (recent tokens in float
where a scheme holds them back), against f16 with paired intervals; bytes with scales, tails, factors and outliers. Then
the layers one by one at 4 bits, and mixes of formats over layers that follow from it.

Needs torch and transformers (torch 2.13.0, transformers 5.23.0 were used) and windows that ``kv_quality.py
--write-windows`` wrote. Results are kept in a folder, so that a run can be interrupted and taken up again::

    export PYTHONPATH=benchmarks OPENBLAS_NUM_THREADS=1
    python benchmarks/research/kv_schemes.py --gguf model.gguf --windows windows.jsonl --keep results/
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
import torch
from kv_mix import rank_layers, swapped, with_formats
from kv_scheme import Scheme, calibrated, centred, recent, schemes
from kv_simulation import Simulation
from kv_stats import Estimate, perplexity, perplexity_ratio
from kv_text import ANSWERS, PROMPTS, Window, read_windows

from edge_rt.export.calibration.text import encode_calibration, read_calibration
from edge_rt.export.opening import open_checkpoint
from edge_rt.package.manifest import BUILT_IN_CALIBRATION
from edge_rt.text.tokenizer import Tokenizer

CONTEXTS = (512, 2048)
CALIBRATION_TOKENS = 768
"""Of the windows that layers are ranked by, one of each source."""
FIRST_TOKENS, LAST_TOKENS = 4, 16
"""That variants keep, or read, in float16."""
KL_EVERY = 8
"""Of the tokens that count, those whose whole distribution is compared; one of them is 200 KB."""


class Evaluation:
    """Windows, what f16 says about them, and a folder of results.

    Args:
        simulation: the model.
        windows: the text.
        keep: where results lie.
    """

    def __init__(self, simulation: Simulation, windows: Sequence[Window], keep: Path) -> None:
        self.simulation = simulation
        self.windows = windows
        self.keep = keep
        keep.mkdir(parents=True, exist_ok=True)
        self._logits: list[torch.Tensor] = []

    def result(self, name: str, layers: Sequence[Scheme]) -> dict[str, Any]:
        """Return per-window losses and most likely tokens, and divergences from f16; computed unless they are kept."""
        path = self.keep / (name.replace(" ", "_").replace(",", "") + ".json")
        if path.exists():
            return json.loads(path.read_text())
        if name != "f16" and not self._logits:
            self._compute([Scheme()] * self.simulation.layers)
        started = time.perf_counter()
        found = self._compute(layers)
        path.write_text(json.dumps(found))
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        return found

    def _compute(self, layers: Sequence[Scheme]) -> dict[str, Any]:
        found: dict[str, Any] = {"losses": [], "tops": [], "kl": []}
        is_first = not self._logits
        for index, window in enumerate(self.windows):
            state = self.simulation.states(window.ids, layers)[-1]
            losses, tops = self.simulation.judge(window, state)
            logits = torch.log_softmax(self.simulation.logits(state, kl_rows(window)), -1)
            if is_first:
                self._logits.append(logits)
            found["losses"].append(losses.tolist())
            found["tops"].append(tops.tolist())
            found["kl"].append(divergence(self._logits[index], logits))
        return found

    def sensitivity(self, windows: Sequence[Window], lossy: Scheme) -> list[float]:
        """Return for each layer the mean divergence from f16, in nats, with this layer alone stored so."""
        path = self.keep / "sensitivity.json"
        if path.exists():
            return json.loads(path.read_text())
        plain = [Scheme()] * self.simulation.layers
        totals = np.zeros(self.simulation.layers)
        count = 0
        for window in windows:
            states = self.simulation.states(window.ids, plain)
            rows = kl_rows(window)
            exact = torch.log_softmax(self.simulation.logits(states[-1], rows), -1)
            for layer in range(self.simulation.layers):
                changed = self.simulation.states(window.ids, swapped(plain, layer, lossy), layer, states[layer])[-1]
                logits = torch.log_softmax(self.simulation.logits(changed, rows), -1)
                totals[layer] += sum(divergence(exact, logits))
            count += len(rows)
        found = (totals / count).tolist()
        path.write_text(json.dumps(found))
        return found


def kl_rows(window: Window) -> list[int]:
    """Return the rows whose distributions are compared."""
    return [index - 1 for index in window.counted()[::KL_EVERY]]


def divergence(exact: torch.Tensor, found: torch.Tensor) -> list[float]:
    """Return KL(exact || found) of log-probabilities ``[rows, vocabulary]``, in nats."""
    return (exact.exp() * (exact - found)).sum(-1, dtype=torch.float64).tolist()


def calibration_ids(gguf: Path) -> tuple[int, ...]:
    """Return the tokens of the text that an export calibrates 4-bit keys with."""
    source, decoder = open_checkpoint(gguf)
    build = source.build_tokenizer(decoder.vocab_size)
    tokenizer = Tokenizer.from_text(build.json_text, info=build, embedding_rows=decoder.vocab_size)
    text = read_calibration(BUILT_IN_CALIBRATION)
    return encode_calibration(text, tokenizer, build.chat_template, decoder.context_length).token_ids


def row_of(
    name: str, layers: Sequence[Scheme], found: dict[str, Any], base: dict[str, Any], simulation: Simulation
) -> dict:
    """Return what is reported of a scheme."""
    losses, exact = ([np.array(window) for window in one["losses"]] for one in (found, base))
    agreement = np.mean(np.concatenate([np.array(a) == b for a, b in zip(found["tops"], base["tops"], strict=True)]))
    ratio: Estimate = perplexity_ratio(losses, exact)
    return {
        "scheme": name,
        "bytes_per_token": {
            n: sum(s.bytes(n, simulation.kv_heads, simulation.head_dim) for s in layers) for n in CONTEXTS
        },
        "perplexity": perplexity(losses),
        "perplexity_ratio": [ratio.value, ratio.low, ratio.high],
        "change": ratio.percent_change(),
        "top1_agreement": float(agreement),
        "mean_kl": float(np.concatenate(found["kl"]).mean()),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a markdown table; bytes are shares of f16's."""
    lines = [
        "| scheme | bytes at 512 | at 2048 | perplexity | against f16 (95 %) | top-1 | KL, nats |",
        "|---|---|---|---|---|---|---|",
    ]
    full = rows[0]["bytes_per_token"]
    for row in rows:
        shares = " | ".join(f"{row['bytes_per_token'][n] / full[n]:.3f}" for n in CONTEXTS)
        change = "" if row is rows[0] else row["change"]
        lines.append(
            f"| {row['scheme']} | {shares} | {row['perplexity']:.4f} | {change} | {row['top1_agreement']:.2%} "
            f"| {row['mean_kl']:.2e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--windows", type=Path, required=True)
    parser.add_argument("--keep", type=Path, required=True, help="folder of results")
    parser.add_argument("--texts", type=int, default=4, help="windows of prompts to judge by")
    parser.add_argument("--chats", type=int, default=0, help="windows of answers to judge by")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of schemes; all, and mixes of layers, if left out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()

    by_source = {
        source: [w for w in read_windows(arguments.windows) if w.source == source] for source in (PROMPTS, ANSWERS)
    }
    judged = by_source[PROMPTS][: arguments.texts] + by_source[ANSWERS][: arguments.chats]
    # Layers are ranked on other text than they are judged by.
    last = [windows[-1] for windows in by_source.values() if windows]
    assert not any(window in judged for window in last), "too few windows to keep some apart"
    calibration = [window.first(CALIBRATION_TOKENS) for window in last]
    simulation = Simulation(arguments.gguf.resolve(), arguments.threads)
    evaluation = Evaluation(simulation, judged, arguments.keep)
    compared = {name: [scheme] * simulation.layers for name, scheme in schemes().items()}
    means = simulation.key_means(calibration)
    for first in (0, FIRST_TOKENS):
        name = "int4, keys centred" + (f", first {first} tokens f16" if first else "")
        compared[name] = [centred(schemes()["int4, both rotated"], mean, first) for mean in means]
    both = [recent(centred(schemes()["int4, both rotated"], mean, 0), LAST_TOKENS) for mean in means]
    compared[f"int4, keys centred, last {LAST_TOKENS} tokens f16"] = both
    constants = simulation.key_constants(calibration_ids(arguments.gguf))
    for name, has_feedback in (("int4, keys calibrated", True), ("int4, keys calibrated, no feedback", False)):
        compared[name] = [
            calibrated(schemes()["int4, both rotated"], layer, has_feedback=has_feedback) for layer in constants
        ]
    chosen = list(compared) if arguments.only is None else ["f16", *arguments.only]
    found = {name: evaluation.result(name, compared[name]) for name in chosen}
    sensitivity: list[float] = []
    if arguments.only is None:
        sensitivity = evaluation.sensitivity(calibration, schemes()["int4, both rotated"])
        mixes = with_formats(rank_layers(sensitivity), schemes())
        found |= {name: evaluation.result(name, layers) for name, layers in mixes.items()}
        compared |= mixes
    rows = [
        row_of(name, layers, found[name], found["f16"], simulation)
        for name, layers in compared.items()
        if name in found
    ]
    tokens = sum(len(window.counted()) for window in judged)
    print(f"{tokens} tokens of {len(judged)} windows\n\n{table(rows)}")
    if sensitivity:
        print("\nint4 in one layer alone, KL by layer, 1e-4 nats: " + " ".join(f"{1e4 * v:.2f}" for v in sensitivity))
    if arguments.json:
        arguments.json.write_text(json.dumps({"tokens": tokens, "schemes": rows, "sensitivity": sensitivity}, indent=1))


if __name__ == "__main__":
    main()
