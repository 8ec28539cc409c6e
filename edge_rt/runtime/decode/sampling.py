"""Sampling: from a row of logits to a token, by mask, penalties, bias, temperature, sets of likely tokens and one draw.

The native library does it (``csrc/sampling/``); without one numpy does, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InferenceError, RuntimeUnavailable
from edge_rt.package.sampling import Sampling
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.native_chain import NO_NUMBERS, NOTHING_LEFT, NativeChain, has_native_chain
from edge_rt.runtime.decode.numpy_chain import NumpyChain

Array = npt.NDArray[Any]

_STEPS: Final = 1 << 53
"""Numbers that a draw can have: float64 below 1."""


class Chance:
    """The random choices of one generation, all from one seeded generator.

    Args:
        seed: makes the choices repeatable; None takes a new seed each time.
    """

    def __init__(self, seed: int | None) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))

    def number(self) -> float:
        """Return the next number, at least 0 and below 1."""
        return self._random.random()

    def happens(self, probability: float) -> bool:
        """Return True with this probability; one number is drawn."""
        return bool(self.number() < probability)

    def choose(self, weights: Array) -> int:
        """Return an index with a probability proportional to its weight; one number is drawn.

        Args:
            weights: ``[n]``, each at least 0, their sum above 0.
        """
        cumulated = np.cumsum(weights, dtype=np.float64)
        drawn = int(np.searchsorted(cumulated, self.number() * cumulated[-1], side="right"))
        return min(drawn, len(cumulated) - 1)


class Sampler:
    """Chooses tokens for one generation; call ``sample`` and then ``observe`` for every emitted token.

    One random number is drawn for every sampled token, whatever was drafted, so a seed gives the same text with any
    drafter.

    Args:
        prompt_ids: tokens before the answer.
        sampling: sampling values in force; None takes those of ``config``, without values that a model recommends.
        exempt: tokens without repetition penalty.
        is_breaker: whether repetitions end at a token, for DRY; None: at none.
        isa: the instruction set; None is the best one. It does not show in the result.
    """

    def __init__(
        self,
        config: GenerationConfig,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        sampling: Sampling | None = None,
        *,
        exempt: Collection[int] = (),
        is_breaker: Callable[[int], bool] | None = None,
        isa: str | None = None,
    ) -> None:
        self._config = config
        self._sampling = config.sampling() if sampling is None else sampling
        self.chance = Chance(config.seed)
        prompt = list(prompt_ids)
        self._processor = config.logits_processor
        self._text = prompt if self._processor is not None else []
        _check_tokens("logit_bias", config.logit_bias, vocab_size)
        _check_tokens("banned", config.banned, vocab_size)
        numbers = {**_numbers(config, self._sampling), "vocabulary": vocab_size}
        self._native: NativeChain | None = None
        if has_native_chain():
            self._is_breaker = is_breaker if config.dry_multiplier else None
            lists = {
                "prompt": prompt,
                "exempt": [token for token in exempt if token < vocab_size],
                "breakers": [] if self._is_breaker is None else [one for one in set(prompt) if self._is_breaker(one)],
                "banned": config.banned,
                "biased": list(config.logit_bias),
            }
            self._native = NativeChain(numbers, lists, list(config.logit_bias.values()), isa)
            return
        _require_no_library(config)
        self._numpy = NumpyChain(
            numbers, prompt=prompt, exempt=exempt, banned=config.banned, bias=dict(config.logit_bias)
        )

    @property
    def takes_best(self) -> bool:
        """Whether the token of the largest logit is always taken, whatever was seen."""
        config = self._config
        keeps_logits = (
            self._sampling.repetition_penalty == 1.0
            and not (config.presence_penalty or config.frequency_penalty or config.dry_multiplier or config.fsd)
            and not (config.logit_bias or config.banned or config.logits_processor)
        )
        return self._sampling.temperature == 0.0 and keeps_logits

    def sample(self, logits: Array, mask: Array | None = None) -> int:
        """Choose a token for a row of logits.

        Args:
            logits: float32 ``[vocabulary]``, left unchanged.
            mask: uint32, a bit for every token, that of token t being bit ``t % 32`` of word ``t // 32``: whether it
                may be chosen; None allows all.

        Raises:
            InferenceError: a logit is no number, or no token is left.
        """
        logits = self._processed(logits)
        # Temperature 0 draws no number.
        random = 0.0 if self._sampling.temperature == 0.0 else self.chance.number()
        if self._native is not None:
            token = self._native.draw(logits, mask, random)
            return token if token >= 0 else _refuse(token, logits)
        ids, weights = self._numpy_law(logits, mask)
        sums = np.cumsum(weights)
        place = int(random * _STEPS) * int(sums[-1]) >> 53
        return int(ids[np.searchsorted(sums, place, side="right")])

    def distribution(self, logits: Array, mask: Array | None = None) -> tuple[Array, Array]:
        """Return what ``sample`` would draw a token from.

        Args:
            logits: float32 ``[vocabulary]``, left unchanged.
            mask: as for ``sample``.

        Returns:
            Token ids int64 ``[n]``, ascending, and their probabilities float64 ``[n]``, above 0, which sum to 1. At
            temperature 0 this is one token.
        """
        logits = self._processed(logits)
        if self._native is None:
            return _as_law(*self._numpy_law(logits, mask))
        ids, probabilities = self._native_law(logits, mask, excludes=False)
        share = 0.0 if self._sampling.temperature == 0.0 else self._config.xtc_probability
        if share == 0.0:
            return ids, probabilities
        some, theirs = self._native_law(logits, mask, excludes=True)
        mixed = (1.0 - share) * probabilities
        mixed[np.searchsorted(ids, some)] += share * theirs
        return ids[mixed > 0], mixed[mixed > 0]

    def observe(self, token_id: int) -> None:
        """Remember an emitted token."""
        if self._processor is not None:
            self._text.append(token_id)
        if self._native is None:
            self._numpy.observe(token_id)
        else:
            is_breaker = self._is_breaker is not None and self._is_breaker(token_id)
            self._native.observe(token_id, is_breaker=is_breaker)

    def _processed(self, logits: Array) -> Array:
        if self._processor is None:
            return logits
        changed = logits.copy()
        self._processor(list(self._text), changed)
        is_row = changed.dtype == logits.dtype and changed.shape == logits.shape and changed.flags.c_contiguous
        if not is_row or (not changed.max() < np.inf and logits.max() < np.inf):
            raise ConfigError(
                "The function 'logits_processor' left no row of logits.",
                f"It is {changed.dtype} {list(changed.shape)}, its largest number {changed.max()}; wanted numbers below"
                f" infinity, {logits.dtype} {list(logits.shape)}.",
                "Change the numbers of the row in place, and nothing else of it.",
            )
        return changed

    def _native_law(self, logits: Array, mask: Array | None, *, excludes: bool) -> tuple[Array, Array]:
        assert self._native is not None
        law = self._native.law(logits, mask, excludes=excludes)
        return _as_law(*law) if isinstance(law, tuple) else _refuse(law, logits)

    def _numpy_law(self, logits: Array, mask: Array | None) -> tuple[Array, Array]:
        scores = self._numpy.scores(logits, mask)
        best = scores.max()
        if np.isnan(best) or best == np.inf:
            _refuse(NO_NUMBERS, logits)
        if best == -np.inf:
            _refuse(NOTHING_LEFT, logits)
        return self._numpy.law(scores)


def _as_law(ids: Array, weights: Array) -> tuple[Array, Array]:
    probabilities = weights.astype(np.float64)
    probabilities /= probabilities.sum()
    return ids.astype(np.int64), probabilities


def _refuse(code: int, logits: Array) -> Any:
    if code == NO_NUMBERS:
        raise InferenceError(
            "The model computed logits that are not numbers.",
            f"The largest of {len(logits)} is {logits.max()}.",
            "Export or pull the model again; report it if it repeats.",
        )
    assert code == NOTHING_LEFT, code
    raise InferenceError(
        "No token may follow.",
        f"All {len(logits)} tokens are banned or do not fit.",
        "Ban fewer tokens, or allow more by the grammar.",
    )


def _check_tokens(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    largest = max(tokens, default=0)
    if largest >= vocab_size:
        raise ConfigError(
            f"The option {name!r} names a token outside the vocabulary.",
            f"Token {largest}, the vocabulary has {vocab_size}.",
            "Use ids of this model's tokens.",
        )


def _numbers(config: GenerationConfig, sampling: Sampling) -> dict[str, float]:
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition": sampling.repetition_penalty,
        "presence": config.presence_penalty,
        "frequency": config.frequency_penalty,
        "top_n_sigma": config.top_n_sigma,
        "top_h": config.top_h,
        "xtc_probability": config.xtc_probability,
        "xtc_threshold": config.xtc_threshold,
        "dry_multiplier": config.dry_multiplier,
        "dry_base": config.dry_base,
        "dry_allowed": config.dry_allowed_length,
        "fsd": config.fsd,
        "fsd_order": config.fsd_order,
    }


def _require_no_library(config: GenerationConfig) -> None:
    """Refuse options that need the native library."""
    for name in ("top_n_sigma", "top_h", "xtc_probability", "dry_multiplier", "fsd"):
        if getattr(config, name):
            raise RuntimeUnavailable(
                f"The option {name!r} needs the native library.",
                "This build of edge-rt has none.",
                "Leave the option out, or install edge-rt with a C++ compiler.",
            )
