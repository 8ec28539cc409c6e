"""All flags of ``edge-rt``: their names and their text in ``--help``.

Names and meanings of flags are defined only here. A command with another default or a narrower meaning for a flag
changes it with ``Flag.but``.
"""

from __future__ import annotations

from typing import Final

from edge_rt.cli.options.spread import Argument, Flag
from edge_rt.device_names import SHOWN_DEVICES
from edge_rt.package.weights_info import WEIGHTS as WEIGHT_NAMES
from edge_rt.runtime.config import GenerationConfig
from edge_rt.spec_modes import SHOWN_MODES

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
"""Same value as in the store, which is not imported so that ``--help`` stays fast."""

GENERATION: Final = "Generation"
SPECULATION: Final = "Speculation"
WITH_PROMPTS: Final = "With --prompts"
PLACES: Final = "Paths and output"
_D: Final = GenerationConfig()


def _of_model(name: str) -> str:
    return f"the model's, or {getattr(_D.sampling(), name)}"


def _model_names(incomplete: str) -> list[str]:
    """Complete names of the store; the shell completes paths."""
    from edge_rt.errors import EdgeRTError
    from edge_rt.store import load_recipes, open_store

    try:
        names = {*open_store().names(), *load_recipes()}
    except EdgeRTError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def _modes(incomplete: str) -> list[str]:
    return [mode for mode in SHOWN_MODES if mode.startswith(incomplete)]


def _devices(incomplete: str) -> list[str]:
    return [name for name in SHOWN_DEVICES if name.startswith(incomplete)]


def _weights(incomplete: str) -> list[str]:
    return [name for name in WEIGHT_NAMES if name.startswith(incomplete)]


# --- which model, and how it is loaded ---

MODEL: Final = Flag(
    ("-m", "--model"),
    "Package, name in the store, GGUF file, folder with safetensors, or org/name on the hub.",
    metavar="MODEL",
    shown=DEFAULT_MODEL,
    complete=_model_names,
)
MEMORY: Final = Flag(
    ("--memory",),
    "Memory budget, such as 600MiB or 2GiB; never exceeded.",
    metavar="SIZE",
    shown="the configuration's, or the available memory",
)
DEVICE_MEMORY: Final = Flag(
    ("--device-memory",),
    "Budget of a GPU's own memory; with memory that it shares, see --memory.",
    metavar="SIZE",
    shown="what is free there",
)
CTX: Final = Flag(("-c", "--ctx"), "Tokens of context.", metavar="N", shown="the model's, up to 8192")
KV_TYPE: Final = Flag(
    ("--kv-type", "--kv"),
    "Format of the KV cache (see inspect), or auto: the fastest that fits.",
    metavar="FORMAT",
    shown="the package's first",
)
THREADS: Final = Flag(("-t", "--threads"), "Threads that compute.", metavar="N", shown="every usable CPU", least=1)
DEVICE: Final = Flag(
    ("--device",),
    f"What computes: {', '.join(SHOWN_DEVICES[:-1])} or {SHOWN_DEVICES[-1]} (portable packages). "
    "auto: the CPU, or a GPU of NVIDIA that was measured to be faster.",
    metavar="DEVICE",
    shown="auto",
    complete=_devices,
)
# For measurements and bug reports; 'edge-rt doctor' lists the names.
ISA: Final = Flag(
    ("--isa",), "Instruction set of the native operators.", metavar="NAME", shown="the best", is_hidden=True
)

# --- how tokens are chosen ---

MAX_TOKENS: Final = Flag(
    ("-n", "--max-tokens"), "Most tokens of an answer.", metavar="N", shown="no limit", panel=GENERATION
)
TEMP: Final = Flag(
    ("--temp",), "Temperature; 0 is greedy.", metavar="T", shown=_of_model("temperature"), panel=GENERATION
)
TOP_P: Final = Flag(
    ("--top-p",), "Keep the likeliest tokens up to this sum.", shown=_of_model("top_p"), panel=GENERATION
)
TOP_K: Final = Flag(
    ("--top-k",), "Keep the k likeliest tokens; 0 keeps all.", shown=_of_model("top_k"), panel=GENERATION
)
MIN_P: Final = Flag(
    ("--min-p",), "Drop tokens below this part of the likeliest.", shown=_of_model("min_p"), panel=GENERATION
)
REPEAT_PENALTY: Final = Flag(
    ("--repeat-penalty",),
    "Penalty for tokens seen before; 1 is off.",
    shown=_of_model("repetition_penalty"),
    panel=GENERATION,
)
PRESENCE_PENALTY: Final = Flag(
    ("--presence-penalty",), "Penalty for tokens in the answer.", shown=str(_D.presence_penalty), panel=GENERATION
)
FREQUENCY_PENALTY: Final = Flag(
    ("--frequency-penalty",),
    "Penalty for each occurrence in the answer.",
    shown=str(_D.frequency_penalty),
    panel=GENERATION,
)
LOGIT_BIAS: Final = Flag(("--logit-bias",), "Add to a token's logit; repeatable.", metavar="ID=VALUE", panel=GENERATION)
NO_REPETITION_GUARD: Final = Flag(
    ("--no-repetition-guard",), "Do not stop an answer that repeats itself or counts without end.", panel=GENERATION
)
SEED: Final = Flag(("--seed",), "Makes sampling reproducible.", metavar="N", shown="a new one", panel=GENERATION)
STOP: Final = Flag(("--stop",), "Text that ends the answer; repeatable.", metavar="TEXT", panel=GENERATION)
ACCEPT: Final = Flag(
    ("--accept",),
    "Acceptance rule: match (same text as plain decoding) or ratio (--spec recycling only).",
    metavar="RULE",
    shown=_D.accept,
    panel=GENERATION,
)

# --- speculation ---

SPEC: Final = Flag(
    ("--spec",),
    f"Mode of speculation: {', '.join(SHOWN_MODES[:-1])} or {SHOWN_MODES[-1]}.",
    metavar="MODE",
    shown="auto, if it fits the memory",
    panel=SPECULATION,
    complete=_modes,
)
DRAFT_MAX: Final = Flag(("--draft-max",), "Most drafted tokens of a pass.", metavar="N", panel=SPECULATION)
REFERENCE: Final = Flag(
    ("--reference",), "Text that the answer may copy, such as a file to be edited.", metavar="FILE", panel=SPECULATION
)
CORPUS: Final = Flag(("--corpus",), "File of 'edge-rt corpus build'.", metavar="FILE", panel=SPECULATION)
DRAFTER: Final = Flag(
    ("--drafter",),
    "Folder of a trained drafter, or with auto a package that drafts, by folder or name; none: without one.",
    metavar="FOLDER|NAME|none",
    shown="one that fits, of the package or installed",
    panel=SPECULATION,
)
SPEC_TRACE: Final = Flag(
    ("--spec-trace",), "Write the decision of every step as JSON lines.", metavar="FILE", panel=SPECULATION
)

# --- prompts and answers ---

PROMPT: Final = Flag(("-p", "--prompt"), "The prompt; standard input follows it.", metavar="TEXT")
SYSTEM: Final = Flag(("-s", "--system"), "System message.", metavar="TEXT")
TEMPLATE_ARG: Final = Flag(
    ("--template-arg",),
    "Argument of the chat template (JSON, else text), such as enable_thinking=false, or tools=[...]; repeatable.",
    metavar="KEY=VALUE",
)
RAW: Final = Flag(("--raw",), "Take prompts as they are, without the chat template.")
NO_STREAM: Final = Flag(("--no-stream",), "Write the answer when it is complete.")
NO_HISTORY: Final = Flag(("--no-history",), "Do not save typed lines.")
PROMPTS: Final = Flag(
    ("--prompts",),
    "JSON lines with 'turns' or 'prompt', or a text a line.",
    metavar="FILE",
)
LIMIT: Final = Flag(("--limit",), "Take the first N prompts.", metavar="N", shown="all", least=1)

# --- measuring ---

REPETITIONS: Final = Flag(("-r", "--repetitions"), "Samples of every figure.", shown="5", least=1)
PP: Final = Flag(("--pp",), "Tokens of a prompt; repeatable.", metavar="N", shown="128 and 512", least=1)
TG: Final = Flag(("--tg",), "Tokens to generate.", metavar="N", shown="128", least=1)
DEPTH: Final = Flag(("-d", "--depth"), "Tokens before the row-cost passes.", metavar="N", shown="128", least=1)
CALIBRATE: Final = Flag(("--calibrate",), "Measure and save the latency of passes for speculation.")
COLD: Final = Flag(("--cold",), "Empty the drafters' tables before every prompt.")
PLOT: Final = Flag(("--plot",), "Save a plot: a .png, .svg or .pdf file.", metavar="FILE")
STATE: Final = Flag(("--state",), "Save finished answers there, and continue from those it holds.", metavar="FILE")
SAVE_PROFILE: Final = Flag(
    ("--save-profile",),
    "Measure memory bandwidth and the memory of a process without a model (about 4 seconds), and save them as a device "
    "description, which plans on this machine use.",
)
PROFILE_NAME: Final = Flag(
    ("--profile-name",), "Save the device description under another name, for 'plan --device NAME'.", metavar="NAME"
)

COMPILE: Final = Flag(
    ("--compile",),
    "Compile the kernels for an NVIDIA GPU ahead of its first use; ARCH is such as sm_87.",
    metavar="ARCH",
)

# --- making and keeping packages ---

OUT: Final = Flag(("-o", "--out"), "Folder to create.", metavar="DIR")
VIA: Final = Flag(
    ("--via",),
    "transformers: let its exporter trace a folder's model, of any architecture (pip install 'edge-rt[transformers]').",
    metavar="EXPORTER",
    shown="edge-rt's own exporter",
)
PROFILE: Final = Flag(
    ("--profile",),
    "native (edge-rt's operators) or portable (ONNX Runtime's).",
    metavar="PROFILE",
    shown="what this machine runs",
)
ACTIVATIONS: Final = Flag(
    ("--activations",), "int8 (fast) or float (closest to the checkpoint; portable only).", metavar="KIND"
)
CALIBRATION: Final = Flag(
    ("--calibration",),
    "Text to quantise weights and to calibrate the constants for 4-bit keys with; none: weights are only rounded, and "
    "there are no constants.",
    metavar="FILE|none",
    shown="a text of edge-rt's own",
)
WEIGHTS: Final = Flag(
    ("--weights",),
    "Types of the matrices: keep (the checkpoint's), int4 (about 4.5 bits a weight), int8, nested8 (8 bits, 4 of "
    "them a model that drafts; native only), f16 or f32.",
    metavar="TYPE",
    shown="int4 for folders of floats, else keep",
    complete=_weights,
)
SIZE: Final = Flag(
    ("--size",),
    "Most bytes of the weights, such as 700MiB: every matrix gets 4 to 8 bits, as its errors matter (native only).",
    metavar="SIZE",
)
EXITS: Final = Flag(
    ("--exits",),
    "Cut the graph behind these layers, such as 6,10,15: drafts can end there (--spec exit; native only).",
    metavar="LAYERS",
)
ACCEPT_LOSS: Final = Flag(
    ("--accept-loss",), "Write the package even if quantising changes the predictions more than is allowed."
)
DRY_RUN: Final = Flag(
    ("--dry-run",),
    "Show the types of the weights, and the disk, memory and time that the export would take; write nothing.",
)
NAME: Final = Flag(("--name",), "Name in the store.")
FORCE: Final = Flag(("--force",), "Replace what already exists.")
YES: Final = Flag(("--yes", "-y"), "Do not ask.")
VERIFY: Final = Flag(("--verify",), "Read every file and compare its hash.")

# --- training drafters ---

KIND: Final = Flag(
    ("--kind",),
    "What is trained: head, exit (adapters of a package's exits) or model (a package of the model's first layers).",
    metavar="KIND",
)
LAYERS: Final = Flag(("--layers",), "Layers of a draft model (--kind model).", metavar="N", shown="2", least=1)
DATA: Final = Flag(
    ("--data",),
    "Prompts that the model answers: JSON lines or plain ones, as bench takes them; self: it writes user turns, too.",
    metavar="FILE|self",
)
TIME: Final = Flag(("--time",), "Time for everything, such as 90s, 30m or 8h.", metavar="TIME")
TRAIN_TOKENS: Final = Flag(("--tokens",), "Answer tokens to write, instead of half of the time.", metavar="N", least=1)
UPDATES: Final = Flag(("--updates",), "Updates of the training, instead of the rest of the time.", metavar="N", least=1)
DROPOUT: Final = Flag(("--dropout",), "Share of inputs that is left out while it learns.", metavar="SHARE", shown="0")
UNROLLED: Final = Flag(("--unrolled",), "Tokens in a row that a head learns to guess.", metavar="N", shown="1", least=1)
VOCABULARY: Final = Flag(
    ("--vocabulary",), "Tokens that it can guess, the most frequent ones.", metavar="N", shown="4096", least=16
)
WORK: Final = Flag(
    ("--work",),
    "Folder for answers and checkpoints; a later run with it continues.",
    metavar="DIR",
    shown="one of the cache folder",
)

# --- places and output ---

JSON: Final = Flag(("--json",), "Write one JSON document to stdout.", panel=PLACES)
JSON_LINES: Final = Flag(("--json-lines",), "Write one JSON event per line.")
QUIET: Final = Flag(("-q", "--quiet"), "Only errors and warnings on stderr.", panel=PLACES)
VERBOSE: Final = Flag(("-v", "--verbose"), "More on stderr, tracebacks included.", panel=PLACES)
NO_COLOR: Final = Flag(("--no-color",), "No colours (also NO_COLOR).", panel=PLACES)
STATS: Final = Flag(("--stats/--no-stats",), "A line of figures after an answer.", panel=PLACES)
STORE: Final = Flag(("--store",), "Folder of the store.", metavar="DIR", panel=PLACES)
CONFIG: Final = Flag(("--config",), "Configuration file.", metavar="FILE", panel=PLACES)
OFFLINE: Final = Flag(("--offline",), "Use what is on this machine only.", panel=PLACES)

# --- arguments ---

REF_ARGUMENT: Final = Argument("[REF]", f"Name, org/name[:FILE.gguf], GGUF file or folder; {DEFAULT_MODEL} if absent.")
PACKAGE_ARGUMENT: Final = Argument(
    "[PACKAGE|GGUF|FOLDER]", "Package, name in the store, GGUF file, folder with safetensors, or drafter."
)
NAME_ARGUMENT: Final = Argument("NAME", "Name in the store.")
TEXTS_ARGUMENT: Final = Argument("TEXT...", "UTF-8 text files; each is a separate text.")
CORPUS_ARGUMENT: Final = Argument("FILE", "Index written by 'edge-rt corpus build'.")
