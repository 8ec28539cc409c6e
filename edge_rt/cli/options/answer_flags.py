"""The flags of how an answer is made: which tokens are chosen, when it ends, and the format that it follows."""

from __future__ import annotations

from typing import Final

from edge_rt.cli.options.flags import PLACES, SPECULATION, completed_from
from edge_rt.cli.options.spread import Flag
from edge_rt.runtime.config import ACCEPTANCE_RULES, GenerationConfig

SAMPLING: Final = "Sampling"
FORMAT: Final = "Format of the answer"
_D: Final = GenerationConfig()


def _of_model(name: str) -> str:
    return f"the model's, or {getattr(_D.sampling(), name)}"


MAX_TOKENS: Final = Flag(
    ("-n", "--max-tokens"), "Maximum number of tokens in the answer.", metavar="N", shown="no limit"
)
TEMP: Final = Flag(
    ("--temp",),
    "Temperature: higher is more varied; 0 always takes the most likely token.",
    metavar="T",
    shown=_of_model("temperature"),
)
TOP_P: Final = Flag(
    ("--top-p",),
    "Sample from the most likely tokens whose probabilities add up to this.",
    metavar="P",
    shown=_of_model("top_p"),
    panel=SAMPLING,
)
TOP_K: Final = Flag(
    ("--top-k",),
    "Sample from this many of the most likely tokens; 0: from all.",
    metavar="K",
    shown=_of_model("top_k"),
    panel=SAMPLING,
)
MIN_P: Final = Flag(
    ("--min-p",),
    "Drop tokens less likely than this fraction of the most likely one.",
    metavar="P",
    shown=_of_model("min_p"),
    panel=SAMPLING,
)
REPEAT_PENALTY: Final = Flag(
    ("--repeat-penalty",),
    "Penalty for tokens that occurred before; 1 is off.",
    metavar="X",
    shown=_of_model("repetition_penalty"),
    panel=SAMPLING,
)
PRESENCE_PENALTY: Final = Flag(
    ("--presence-penalty",),
    "Penalty for tokens that occur in the answer; 0 is off.",
    metavar="X",
    shown=f"{_D.presence_penalty:g}",
    panel=SAMPLING,
)
FREQUENCY_PENALTY: Final = Flag(
    ("--frequency-penalty",),
    "Penalty for each time that a token occurs in the answer; 0 is off.",
    metavar="X",
    shown=f"{_D.frequency_penalty:g}",
    panel=SAMPLING,
)
LOGIT_BIAS: Final = Flag(
    ("--logit-bias",),
    "Add VALUE to the logit of the token with this id; repeatable.",
    metavar="ID=VALUE",
    panel=SAMPLING,
)
BANNED: Final = Flag(
    ("--banned",), "Never choose the token with this id; repeatable.", metavar="ID", panel=SAMPLING, least=0
)
TOP_N_SIGMA: Final = Flag(
    ("--top-n-sigma",),
    "Drop tokens whose logit is more than this many standard deviations below the largest; 0 is off.",
    metavar="N",
    shown=f"{_D.top_n_sigma:g}",
    panel=SAMPLING,
)
TOP_H: Final = Flag(
    ("--top-h",),
    "Sample from the most likely tokens up to this part of the whole entropy (Top-H); 0 is off.",
    metavar="A",
    shown=f"{_D.top_h:g}",
    panel=SAMPLING,
)
XTC_PROBABILITY: Final = Flag(
    ("--xtc-probability",),
    "How often to drop all likely tokens but the least likely of them (XTC); 0 is off.",
    metavar="P",
    shown=f"{_D.xtc_probability:g}",
    panel=SAMPLING,
)
XTC_THRESHOLD: Final = Flag(
    ("--xtc-threshold",),
    "Probability from which on a token is likely for XTC.",
    metavar="P",
    shown=f"{_D.xtc_threshold:g}",
    panel=SAMPLING,
)
DRY_MULTIPLIER: Final = Flag(
    ("--dry-multiplier",),
    "Penalty for tokens that make a repetition of earlier text longer (DRY); 0 is off.",
    metavar="X",
    shown=f"{_D.dry_multiplier:g}",
    panel=SAMPLING,
)
DRY_BASE: Final = Flag(
    ("--dry-base",),
    "Factor on DRY's penalty for every further token of the repetition.",
    metavar="X",
    shown=f"{_D.dry_base:g}",
    panel=SAMPLING,
)
DRY_ALLOWED_LENGTH: Final = Flag(
    ("--dry-allowed-length",),
    "Tokens of a repetition from which on DRY counts it.",
    metavar="N",
    shown=f"{_D.dry_allowed_length}",
    panel=SAMPLING,
)
DRY_BREAKER: Final = Flag(
    ("--dry-breaker",),
    "Text that ends repetitions for DRY, instead of the usual ones; repeatable.",
    metavar="TEXT",
    shown="newline, colon, quote, *",
    panel=SAMPLING,
)
FSD: Final = Flag(
    ("--fsd",),
    "Share of the n-grams of prompt and answer that is subtracted from the model's probabilities (FSD); 0 is off.",
    metavar="A",
    shown=f"{_D.fsd:g}",
    panel=SAMPLING,
)
LOGPROBS: Final = Flag(
    ("--logprobs",),
    "With --json or --json-lines: the log probability of every token, and of this many of the most likely ones.",
    metavar="N",
    panel=PLACES,
    least=0,
)
FSD_ORDER: Final = Flag(
    ("--fsd-order",),
    "Tokens of FSD's longest n-grams, 1 to 8.",
    metavar="N",
    shown=f"{_D.fsd_order}",
    panel=SAMPLING,
)
NO_REPETITION_GUARD: Final = Flag(
    ("--no-repetition-guard",), "Do not stop an answer that repeats itself or counts without end.", panel=SAMPLING
)
SEED: Final = Flag(("--seed",), "Makes sampling repeatable.", metavar="N", shown="a new one each time", panel=SAMPLING)
STOP: Final = Flag(
    ("--stop",), "Text that ends the answer, and is not part of it; repeatable.", metavar="TEXT", panel=SAMPLING
)
JSON_SCHEMA: Final = Flag(
    ("--json-schema",), "JSON schema that the answer fits; the answer is JSON.", metavar="FILE", panel=FORMAT
)
JSON_OBJECT: Final = Flag(("--json-object",), "Let the answer be a JSON object.", panel=FORMAT)
REGEX: Final = Flag(
    ("--regex",), "Regular expression that the whole answer matches.", metavar="EXPRESSION", panel=FORMAT
)
GRAMMAR: Final = Flag(
    ("--grammar",), "Grammar in Lark's notation that the answer follows.", metavar="FILE", panel=FORMAT
)
JSON_SPACES: Final = Flag(
    ("--json-spaces",), "Let JSON have spaces and line ends between its parts; else it is compact.", panel=FORMAT
)
ACCEPT: Final = Flag(
    ("--accept",),
    "Which guesses stay: match (the text of plain decoding) or ratio (other text, same distribution; only with "
    "--spec recycling).",
    metavar="RULE",
    shown=_D.accept,
    panel=SPECULATION,
    complete=completed_from(*ACCEPTANCE_RULES),
)
