"""The speed-up of speculation on prompts: plain and speculative decoding of the same tokens, interleaved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence as Items
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edge_rt.errors import InferenceError
from edge_rt.measure.prompts import PLAIN, LeftOut, Prompt, answer_each, first_difference, steps_of
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Result

if TYPE_CHECKING:
    from edge_rt.runtime.model import Model

RESAMPLES: Final = 2000
INTERVAL: Final = (2.5, 97.5)
REPEATED_GRAM: Final = 4
WARM_UP_TOKENS: Final = 16


@dataclass(frozen=True)
class Sample:
    """One prompt, answered with plain and with speculative decoding; both give the same tokens.

    Attributes:
        plain_ms: milliseconds of plain decoding, from the first token to the last.
        spec_ms: milliseconds of speculative decoding, from the first token to the last, drafting included.
        plain_total_ms: milliseconds of the whole plain request, encoding and prefill included.
        spec_total_ms: milliseconds of the whole speculative request, encoding and prefill included.
        accepted_at: steps that accepted at least 1, 2, ... tokens.
        drafting_ms: milliseconds of drafting and updating the drafters' tables.
        verifying_ms: milliseconds of passes and of choosing tokens.
        grams: number of 4-grams in the answer.
        repeated: number of 4-grams that occurred earlier in the answer.
    """

    prompt: int
    category: str
    tokens: int
    plain_ms: float
    spec_ms: float
    plain_total_ms: float
    spec_total_ms: float
    steps: int
    tested: int
    accepted: int
    accepted_at: tuple[int, ...]
    drafting_ms: float
    verifying_ms: float
    grams: int
    repeated: int

    @property
    def repetition(self) -> float:
        """Share of repeated 4-grams; 0 for an answer too short to have one."""
        return self.repeated / self.grams if self.grams else 0.0


def measure_prompts(
    model: Model,
    prompts: Items[Prompt],
    config: GenerationConfig,
    mode: str,
    *,
    cold: bool = False,
    raw: bool = False,
    cancel: CancelToken | None = None,
) -> Generator[Sample | LeftOut]:
    """Answer every prompt with plain and with one mode's decoding, interleaved, as ``answer_each``, after a warm-up."""
    short = config.with_options(max_tokens=min(WARM_UP_TOKENS, config.max_tokens or WARM_UP_TOKENS))
    # Warm-up with the first prompt that fits: pages are touched, pass latency is calibrated, code is imported.
    for _, item in answer_each(model, prompts, short, (PLAIN, mode), raw=raw, cancel=cancel):
        if not isinstance(item, LeftOut):
            break
    for prompt, item in answer_each(model, prompts, config, (PLAIN, mode), raw=raw, cold=cold, cancel=cancel):
        yield item if isinstance(item, LeftOut) else _sample(prompt, *item)


def _token(token_id: int | None) -> str:
    return "the end" if token_id is None else str(token_id)


def _sample(prompt: Prompt, plain: Result, speculative: Result) -> Sample:
    if (parted := first_difference(plain.token_ids, speculative.token_ids)) is not None:
        raise InferenceError(
            "Speculative decoding gave another answer than plain decoding, so the two cannot be compared.",
            f"Prompt {prompt.index}, token {parted[0]}: plain {_token(parted[1])}, speculative {_token(parted[2])}.",
            "With the op profile portable this can happen; with native it is a bug: run edge-rt verify and report it.",
        )
    ids = speculative.token_ids
    grams = Counter(zip(*(ids[offset:] for offset in range(REPEATED_GRAM)), strict=False))
    spec = speculative.spec
    return Sample(
        prompt=prompt.index,
        category=prompt.category,
        tokens=len(ids),
        plain_ms=plain.timings.predicted_ms,
        spec_ms=speculative.timings.predicted_ms,
        plain_total_ms=plain.timings.ttft_ms + plain.timings.predicted_ms,
        spec_total_ms=speculative.timings.ttft_ms + speculative.timings.predicted_ms,
        steps=steps_of(speculative),
        tested=spec.draft_n if spec is not None else 0,
        accepted=spec.draft_n_accepted if spec is not None else 0,
        accepted_at=tuple(round(share * spec.steps) for share in spec.accepted_per_position) if spec else (),
        drafting_ms=spec.drafting_ms if spec is not None else 0.0,
        verifying_ms=spec.verifying_ms if spec is not None else speculative.timings.predicted_ms,
        grams=grams.total(),
        repeated=grams.total() - len(grams),
    )


def figures(samples: Items[Sample]) -> dict[str, Any]:
    """Return the figures of some prompts as a JSON object; a figure is None where its divisor is 0.

    - ``speedup``: sum of plain decoding times over sum of speculative ones; ``speedup_interval``: its 95 % bootstrap
      interval over prompts (Efron, 1979), None for a single prompt; ``speedup_mean``: mean of the prompts' own ratios;
      ``speedup_with_prefill``: of whole requests.
    - ``tokens_per_step``: tokens over verification passes, after every answer's first token; ``acceptance``: accepted
      over tested drafted tokens; ``accepted_per_position``: share of the steps that accepted at least 1, 2, ... tokens.
    - ``tok_s``, ``tok_s_plain``: tokens after the first one, per second of decoding.
    - ``drafting_share``: drafting time over drafting and verification time; ``repetition``: share of 4-grams that
      occurred earlier in the answer.
    """
    steps = sum(item.steps for item in samples)
    # An answer of one token has no decoding time.
    decoded = [item for item in samples if item.tokens > 1]
    plain, spec = np.array([s.plain_ms for s in decoded]), np.array([s.spec_ms for s in decoded])
    decoded_tokens = sum(max(item.tokens - 1, 0) for item in samples)
    ratios = [s.plain_ms / s.spec_ms for s in decoded if s.spec_ms > 0]
    drafting = sum(s.drafting_ms for s in samples)
    positions = max((len(s.accepted_at) for s in samples), default=0)
    reached = [sum(s.accepted_at[k] for s in samples if k < len(s.accepted_at)) for k in range(positions)]
    return {
        "prompts": len(samples),
        "tokens": sum(item.tokens for item in samples),
        "speedup": _ratio(plain.sum(), spec.sum()),
        "speedup_interval": speedup_interval(plain, spec),
        "speedup_mean": _ratio(sum(ratios), len(ratios)),
        "speedup_with_prefill": _ratio(sum(s.plain_total_ms for s in samples), sum(s.spec_total_ms for s in samples)),
        "tokens_per_step": _ratio(decoded_tokens, steps),
        "acceptance": _ratio(sum(s.accepted for s in samples), sum(s.tested for s in samples)),
        "accepted_per_position": [count / steps for count in reached],
        "tok_s": _ratio(1e3 * decoded_tokens, spec.sum()),
        "tok_s_plain": _ratio(1e3 * decoded_tokens, plain.sum()),
        "drafting_share": _ratio(drafting, drafting + sum(s.verifying_ms for s in samples)),
        "repetition": _ratio(sum(s.repeated for s in samples), sum(s.grams for s in samples)),
    }


def speedup_interval(plain: Any, spec: Any) -> list[float] | None:
    """Return the 95 % bootstrap interval of ``sum(plain) / sum(spec)``; deterministic.

    Prompts are drawn with replacement, with both times of a prompt together.

    Args:
        plain: times of plain decoding, float64 ``[prompts]``, milliseconds.
        spec: times of speculative decoding, float64 ``[prompts]``, milliseconds.
    """
    if len(plain) < 2:
        return None
    drawn = np.random.default_rng(0).integers(0, len(plain), (RESAMPLES, len(plain)))
    above, below = plain[drawn].sum(axis=1), spec[drawn].sum(axis=1)
    if not (below > 0).all():
        return None
    return [float(value) for value in np.percentile(above / below, INTERVAL)]


def report(samples: Items[Sample], left_out: Items[LeftOut]) -> dict[str, Any]:
    """Return all figures as a JSON object: for all prompts, by category, and for the least repetitive half.

    A small model that repeats itself makes drafters that copy look better than they are. The least repetitive half
    shows the gain without that; with an odd number of prompts it includes the middle one.
    """
    categories: Mapping[str, None] = dict.fromkeys(item.category for item in samples)
    calm = sorted(samples, key=lambda item: (item.repetition, item.prompt))[: (len(samples) + 1) // 2]
    return {
        **figures(samples),
        "by_category": {name: figures([s for s in samples if s.category == name]) for name in categories},
        "least_repetitive_half": figures(calm),
        "left_out": [asdict(item) for item in left_out],
    }


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if below else None
