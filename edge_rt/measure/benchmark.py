"""The llama-bench table of a loaded model, the time to the first token, and the row-cost curve.

Prompts are random tokens, as in llama-bench. Unlike in llama-bench, the generation figures include choosing the most
likely token. They do not include encoding text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from edge_rt.errors import ConfigError
from edge_rt.ort.expert_cache import ExpertReads
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.loop import Decoding, Target, decode, prefill
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence as Request
from edge_rt.runtime.model import Model
from edge_rt.system.byte_size import show_size
from edge_rt.system.notebooks import shown_table, shown_text
from edge_rt.system.option_names import known_options
from edge_rt.system.process_memory import peak_rss_bytes

ROW_COUNTS: Final = (1, 2, 4, 8, 16)
FIRST_TOKEN_PROMPT: Final = 128
"""Tokens of the prompt for the time to the first token."""
PASSES_PER_REPETITION: Final = 12
"""Passes of each row count in one repetition of the row-cost curve."""


@dataclass(frozen=True)
class BenchReport:
    """Samples of a benchmark.

    Attributes:
        tokens_per_second: test name (``pp128``, ``tg128``...) -> one figure per repetition.
        ttft_ms: time to first token in milliseconds for a prompt of 128 tokens, one per repetition.
        row_cost_ms: rows of a pass -> milliseconds of every pass.
        depth: tokens in the cache before each pass of the row-cost curve.
        reads: what was read of experts while tokens were generated, and how many these were; None: experts are in
            memory, or there are none.
    """

    tokens_per_second: dict[str, list[float]]
    ttft_ms: list[float]
    row_cost_ms: dict[int, list[float]]
    depth: int
    peak_bytes: int
    reads: tuple[ExpertReads, int] | None = None

    def rows(self) -> list[tuple[str, float, float]]:
        """Return (test, mean tokens per second, standard deviation) per test."""
        return [(test, statistics.fmean(s), _deviation(s)) for test, s in self.tokens_per_second.items()]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object: means, deviations, medians of the curve, and every sample."""
        document: dict[str, Any] = {}
        for test, mean, deviation in self.rows():
            document |= {f"{test}_tok_s": mean, f"{test}_tok_s_std": deviation}
        if self.reads is not None:
            reads, tokens = self.reads
            each = reads.bytes / max(1, tokens)
            document["experts"] = {**asdict(reads), "hit_share": reads.hit_share, "read_bytes_per_token": each}
        return document | {
            "ttft_ms": statistics.median(self.ttft_ms),
            "peak_bytes": self.peak_bytes,
            "row_cost_ms": {str(rows): statistics.median(ms) for rows, ms in self.row_cost_ms.items()},
            "row_cost_depth": self.depth,
            "samples": {"tok_s": self.tokens_per_second, "ttft_ms": self.ttft_ms},
        }

    def _repr_html_(self) -> str:
        document = self.to_json()
        speeds = [(test, f"{mean:.2f} ± {deviation:.2f}") for test, mean, deviation in self.rows()]
        passes = [(rows, f"{ms:.2f}") for rows, ms in document["row_cost_ms"].items()]
        words = f"First token of a prompt of {FIRST_TOKEN_PROMPT} tokens after {document['ttft_ms']:.0f} ms; "
        return (
            shown_table(speeds, head=("test", "tokens per second"), right=(1,))
            + shown_table(passes, head=("rows of one pass", "ms"), right=(0, 1))
            + shown_text(f"{words}peak memory {show_size(self.peak_bytes)}.")
        )


@known_options()
def bench(
    model: Model,
    *,
    repetitions: int = 5,
    prompt_sizes: Sequence[int] = (128, 512),
    generate: int = 128,
    depth: int = 128,
    row_counts: Sequence[int] = ROW_COUNTS,
    on_progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Measure the speed of a model, as ``edge-rt bench`` does, after a warm-up; it is reset before and after.

    Args:
        repetitions: samples of each figure.
        prompt_sizes: tokens of the prompts whose reading is measured.
        generate: tokens that are generated.
        depth: tokens in the cache before a pass of the row-cost curve.
        row_counts: rows of the passes of that curve.
        on_progress: called with what is measured: ``"warm-up"``, ``"1/5"``...

    Raises:
        ConfigError: a count is less than 1, or the context too short for what is measured.
        Busy: the model is generating.
        ModelClosed: it was closed.
    """
    needed = max(*prompt_sizes, generate + 1, depth + max(row_counts), FIRST_TOKEN_PROMPT + 1)
    if min(repetitions, generate, depth, *prompt_sizes, *row_counts) < 1 or needed > model.context_tokens:
        raise ConfigError(
            "The benchmark does not fit the model.",
            f"It needs counts of at least 1 and a context of {needed} tokens; the model has {model.context_tokens}.",
            "Load the model with a larger context, or measure less.",
        )
    # Every row of these passes needs a row of logits, and a small budget may allow only few.
    row_counts = [rows for rows in row_counts if rows <= (model.logit_rows or rows)]
    rng = np.random.default_rng(0)
    vocab_size = model.package.manifest.model.vocab_size

    def random_ids(count: int) -> list[int]:
        return [int(i) for i in rng.integers(0, vocab_size, count)]

    speeds: dict[str, list[float]] = {test: [] for test in (*(f"pp{n}" for n in prompt_sizes), f"tg{generate}")}
    ttft: list[float] = []
    costs: dict[int, list[float]] = {rows: [] for rows in row_counts}
    reads: ExpertReads | None = None
    for repetition in range(repetitions + 1):
        if on_progress is not None:
            on_progress("warm-up" if repetition == 0 else f"{repetition}/{repetitions}")
        with model.passes() as (target, cache):
            for size in prompt_sizes:
                speeds[f"pp{size}"].append(size / _time_prefill(target, cache, random_ids(size), model.prefill_chunk))
            begun = model.expert_reads()
            speeds[f"tg{generate}"].append(generate / _time_decode(target, cache, random_ids(1), generate, vocab_size))
            if begun is not None and (now := model.expert_reads()) is not None and repetition:
                reads = now.since(begun) if reads is None else reads.plus(now.since(begun))
            _measure_rows(target, cache, random_ids, depth, model.prefill_chunk, costs)
            cache.truncate(0)
        ttft.append(_time_to_first_token(model, random_ids(FIRST_TOKEN_PROMPT)))
        if repetition == 0:
            for samples in (*speeds.values(), ttft, *costs.values()):
                samples.clear()
    read = None if reads is None else (reads, repetitions * generate)
    return BenchReport(speeds, ttft, costs, depth, peak_rss_bytes(), read)


def _time_prefill(target: Target, cache: KVCache, token_ids: list[int], chunk: int) -> float:
    cache.truncate(0)
    request = Request(token_ids, capacity=len(token_ids) + 1, max_tokens=1, end_ids=())
    started = time.perf_counter()
    prefill(request, target, cache, chunk)
    rest = token_ids[cache.length :]
    with cache.reserve(len(rest)) as rows:
        target.forward(rest, rows.start, 1)
        rows.commit(rest)
    return time.perf_counter() - started


def _time_decode(target: Target, cache: KVCache, token_ids: list[int], count: int, vocab_size: int) -> float:
    cache.truncate(0)
    request = Request(token_ids, capacity=count + 1, max_tokens=count, end_ids=())
    sampler = Sampler(GenerationConfig(temperature=0.0), vocab_size)
    started = time.perf_counter()
    for _ in decode(Decoding(request, NullDrafter(), cache, sampler), target):
        pass
    return time.perf_counter() - started


def _measure_rows(
    target: Target,
    cache: KVCache,
    random_ids: Callable[[int], list[int]],
    depth: int,
    chunk: int,
    costs: dict[int, list[float]],
) -> None:
    """Time passes with interleaved row counts, so that a slow moment of the machine affects all of them."""
    _time_prefill(target, cache, random_ids(depth), chunk)
    for _ in range(PASSES_PER_REPETITION):
        for rows, samples in costs.items():
            token_ids = random_ids(rows)
            with cache.reserve(rows) as reserved:
                started = time.perf_counter()
                target.forward(token_ids, reserved.start, rows)
                samples.append(1e3 * (time.perf_counter() - started))


def _time_to_first_token(model: Model, token_ids: list[int]) -> float:
    model.reset()
    result = model.stream_ids(token_ids, GenerationConfig(temperature=0.0, max_tokens=1)).result()
    model.reset()
    return result.timings.ttft_ms


def _deviation(samples: list[float]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0
