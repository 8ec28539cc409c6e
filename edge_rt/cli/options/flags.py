"""The flags of ``edge-rt``: their names and their text in ``--help``.

Names and meanings of flags are defined only here, in ``answer_flags`` (how answers are made) and in ``making_flags``
(how packages and drafters are made). A command with another default or a narrower meaning for one changes it with
``Flag.but``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge_rt.cli.options.spread import Argument, Flag
from edge_rt.device.names import KINDS, NUMBER_HELP
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.spec_modes import SHOWN_MODES

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
"""Same value as in the store, which is not imported so that ``--help`` stays fast."""

MEMORY_PANEL: Final = "Memory and device"
PROMPTING: Final = "Prompt and template"
SPECULATION: Final = "Speculation (tokens guessed ahead, for speed)"
WITH_PROMPTS: Final = "With --prompts"
PLACES: Final = "Paths and output"


def model_names(incomplete: str) -> list[str]:
    """Complete names of models: of this machine first, and alone before anything is typed; the shell has paths."""
    from edge_rt.errors import EdgeRTError
    from edge_rt.store.catalogue import load_catalogue
    from edge_rt.store.recipes import load_recipes

    try:
        here = stored_names("")
        others = [] if here and not incomplete else sorted({*load_recipes(), *load_catalogue()})
    except EdgeRTError:
        return []
    return [name for name in dict.fromkeys((*here, *others)) if name.startswith(incomplete)]


def stored_names(incomplete: str) -> list[str]:
    """Complete names of the store, and presets."""
    from edge_rt.errors import EdgeRTError
    from edge_rt.store.config import load_config
    from edge_rt.store.layout import open_store

    try:
        config = load_config()
        names = {*open_store(config=config).names(), *config.presets}
    except EdgeRTError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def _catalogue_names(incomplete: str) -> list[str]:
    """Complete names of the catalogue."""
    from edge_rt.store.catalogue import load_catalogue

    return [name for name in load_catalogue() if name.startswith(incomplete)]


def completed_from(*names: str) -> Callable[[str], list[str]]:
    """Complete fixed names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def planned_devices(incomplete: str) -> list[str]:
    """Complete the devices that ``plan --device`` takes: of this machine, presets, and saved ones."""
    from edge_rt.errors import EdgeRTError
    from edge_rt.memory.device import LIST, presets, saved_names

    try:
        saved = saved_names()
    except EdgeRTError:
        saved = []
    names = dict.fromkeys((*KINDS, LIST, *presets(), *saved))
    return [name for name in names if name.startswith(incomplete)]


def _instruction_sets(incomplete: str) -> list[str]:
    from edge_rt.ort.op_library import library_path, native_status

    return [name for name in native_status(library_path()).instruction_sets if name.startswith(incomplete)]


# --- which model, and how it is loaded ---

MODEL: Final = Flag(
    ("-m", "--model"),
    "Name in the store or catalogue, org/name on the Hugging Face hub, GGUF file, folder with safetensors, or package.",
    metavar="MODEL",
    shown=DEFAULT_MODEL,
    complete=model_names,
)
MEMORY: Final = Flag(
    ("--memory",),
    "Memory budget, such as 600MiB or 2GiB; never exceeded on a CPU.",
    metavar="SIZE",
    shown="the configuration's, or the available memory",
    panel=MEMORY_PANEL,
)
DEVICE_MEMORY: Final = Flag(
    ("--device-memory",),
    "Limit for a GPU's dedicated memory. On GPUs that share system memory, use --memory.",
    metavar="SIZE",
    shown="what is free there",
    panel=MEMORY_PANEL,
)
EXPERTS: Final = Flag(
    ("--experts",),
    "Experts of a mixture: resident (all in memory), a cache of this size that they are read into, or auto.",
    metavar="auto|resident|SIZE",
    shown="auto: resident if they fit, else what the budget leaves",
    panel=MEMORY_PANEL,
    complete=completed_from("auto", "resident"),
)
PROMPT_CACHE: Final = Flag(
    ("--prompt-cache",),
    "Folder that keeps what was computed of prompts, so that later ones that begin alike are read, not computed.",
    metavar="DIR",
    shown="none: nothing is written",
    panel=MEMORY_PANEL,
)
PROMPT_CACHE_SIZE: Final = Flag(
    ("--prompt-cache-size",),
    "Most bytes of it on disk; what was not used for the longest time is removed.",
    metavar="SIZE",
    shown="2GiB",
    panel=MEMORY_PANEL,
)
CTX: Final = Flag(
    ("-c", "--ctx"),
    "Size of the context, in tokens: the conversation with its answers.",
    metavar="N",
    shown="the model's, up to 8192",
)
KV_TYPE: Final = Flag(
    ("--kv-type", "--kv"),
    "Format of the KV cache, such as f16, int8 or int4 (see inspect); auto: the fastest that fits.",
    metavar="FORMAT",
    shown="the package's default, as inspect shows it",
    panel=MEMORY_PANEL,
    complete=completed_from("auto", *KV_FORMAT),
)
THREADS: Final = Flag(
    ("-t", "--threads"), "Number of threads.", metavar="N", shown="every usable CPU", panel=MEMORY_PANEL, least=1
)
SLOTS: Final = Flag(
    ("--slots",),
    "Answers that are computed at once.",
    metavar="N",
    shown="1",
    panel=MEMORY_PANEL,
    least=1,
)
KV_ROWS: Final = Flag(
    ("--kv-rows",),
    "Rows of the KV cache that slots share: tokens of all answers at once, at least a context.",
    metavar="N",
    shown="a context for each slot, if that fits",
    panel=MEMORY_PANEL,
    least=1,
)
HOST: Final = Flag(
    ("--host",),
    "Address to listen on; any but this machine's own needs a key.",
    metavar="ADDRESS",
    shown="127.0.0.1: this machine alone",
)
PORT: Final = Flag(("--port",), "Port to listen on; 0: any that is free.", metavar="N", shown="8080")
API_KEY_FILE: Final = Flag(
    ("--api-key-file",),
    "File with the key that clients have to send; or set EDGE_RT_API_KEY.",
    metavar="FILE",
    shown="none, on 127.0.0.1",
)
ALLOWED_HOST: Final = Flag(
    ("--allowed-host",), "Further name of this server, as clients write it in addresses; repeatable.", metavar="NAME"
)
ALLOW_ORIGIN: Final = Flag(
    ("--allow-origin",),
    "Page of another server that may ask, such as http://localhost:3000; repeatable.",
    metavar="ORIGIN",
)
QUEUE: Final = Flag(
    ("--queue",),
    "Requests that may wait for a slot; further ones are told when to come again.",
    metavar="N",
    shown="64",
    least=0,
)
UNLOAD_AFTER: Final = Flag(
    ("--unload-after",),
    "Seconds without a request after which a model is unloaded; 0: never.",
    metavar="SECONDS",
    shown="900",
    panel=MEMORY_PANEL,
)
NO_PROMPT_CACHE: Final = Flag(("--no-prompt-cache",), "Write nothing of prompts to the disk.", panel=MEMORY_PANEL)
DEVICE: Final = Flag(
    ("--device",),
    f"What computes: {', '.join(KINDS[:-1])} or {KINDS[-1]} (portable packages); {NUMBER_HELP}. "
    "auto: the CPU, or a GPU that was measured to be faster.",
    metavar="DEVICE",
    shown="auto",
    panel=MEMORY_PANEL,
    complete=completed_from(*KINDS),
)
ON_DEVICE_ERROR: Final = Flag(
    ("--on-device-error",),
    "Where a GPU fails, or has no memory left, in an answer: end with an error, or go on with the CPU (same text).",
    metavar="error|cpu",
    shown="error",
    panel=MEMORY_PANEL,
    complete=completed_from("error", "cpu"),
)
MACHINES: Final = Flag(
    ("--machines",),
    "Plan for the machines that this TOML or JSON file lists: how many models on which, and how fast.",
    metavar="FILE",
    panel=MEMORY_PANEL,
)
# For measurements and bug reports; 'edge-rt doctor' lists the names.
ISA: Final = Flag(
    ("--isa",),
    "Instruction set of the native operators.",
    metavar="NAME",
    shown="the best",
    panel=MEMORY_PANEL,
    is_hidden=True,
    complete=_instruction_sets,
)

# --- speculation ---

SPEC: Final = Flag(
    ("--spec",),
    f"How tokens are guessed ahead: {', '.join(SHOWN_MODES[:-1])} or {SHOWN_MODES[-1]}.",
    metavar="MODE",
    shown="auto, if it fits the memory",
    panel=SPECULATION,
    complete=completed_from(*SHOWN_MODES),
)
DRAFT_MAX: Final = Flag(("--draft-max",), "Maximum number of tokens to draft per pass.", metavar="N", panel=SPECULATION)
REFERENCE: Final = Flag(
    ("--reference",),
    "Text that the answer may copy from, such as a file to be edited.",
    metavar="FILE",
    panel=SPECULATION,
)
CORPUS: Final = Flag(
    ("--corpus",),
    "Index of your texts to look guesses up in, made by 'edge-rt corpus build'.",
    metavar="FILE",
    panel=SPECULATION,
)
DRAFTER: Final = Flag(
    ("--drafter",),
    "Folder of a trained drafter, or with --spec auto the folder or name of a package that drafts; none: no drafter.",
    metavar="FOLDER|NAME|none",
    shown="one that fits, of the package or installed",
    panel=SPECULATION,
)
SPEC_TRACE: Final = Flag(
    ("--spec-trace",), "Write the decisions of every step as JSON lines.", metavar="FILE", panel=SPECULATION
)

# --- prompts and answers ---

PROMPT: Final = Flag(("-p", "--prompt"), "The prompt; text on standard input follows it.", metavar="TEXT")
SYSTEM: Final = Flag(("-s", "--system"), "System message: instructions for the whole conversation.", metavar="TEXT")
PREFILL: Final = Flag(
    ("--prefill",), "Beginning of the answer, which the model continues.", metavar="TEXT", panel=PROMPTING
)
TEMPLATE_ARG: Final = Flag(
    ("--template-arg",),
    "Argument of the chat template (JSON, else text), such as enable_thinking=false or tools=[...]; repeatable.",
    metavar="KEY=VALUE",
    panel=PROMPTING,
)
TOOLS: Final = Flag(
    ("--tools",),
    "Functions that the answer may call: a JSON list of tools as OpenAI's API has them. Calls are printed as JSON.",
    metavar="FILE",
    panel=PROMPTING,
)
TOOL_CHOICE: Final = Flag(
    ("--tool-choice",),
    "Whether it calls one: auto, required, none, or the name of the one to call.",
    metavar="CHOICE",
    shown="auto",
    panel=PROMPTING,
    complete=completed_from("auto", "required", "none"),
)
NO_PARALLEL_TOOL_CALLS: Final = Flag(("--no-parallel-tool-calls",), "At most one call in the answer.", panel=PROMPTING)
RAW: Final = Flag(("--raw",), "Take prompts as they are, without the chat template.", panel=PROMPTING)
NO_STREAM: Final = Flag(("--no-stream",), "Write the answer when it is complete.", panel=PLACES)
NO_HISTORY: Final = Flag(("--no-history",), "Do not save typed lines.", panel=PLACES)
PROMPTS: Final = Flag(
    ("--prompts",),
    "File of prompts: JSON lines with 'turns' or 'prompt', or one prompt per line.",
    metavar="FILE",
)
SCORED_TEXT: Final = Argument("TEXT", "The text, in quotes; without one it is read from standard input.")
TEXTS: Final = Flag(
    ("--texts",),
    "File of texts: JSON lines with 'text', 'prompt' or 'turns', or one text per line.",
    metavar="FILE",
)
LIMIT: Final = Flag(("--limit",), "Take only the first N prompts.", metavar="N", shown="all", least=1)

# --- measuring ---

REPETITIONS: Final = Flag(
    ("-r", "--repetitions"), "How often each figure is measured.", metavar="N", shown="5", least=1
)
PP: Final = Flag(("--pp",), "Tokens of the prompt; repeatable.", metavar="N", shown="128 and 512", least=1)
TG: Final = Flag(("--tg",), "Tokens to generate.", metavar="N", shown="128", least=1)
DEPTH: Final = Flag(
    ("-d", "--depth"),
    "Tokens in the context when passes of several tokens are measured.",
    metavar="N",
    shown="128",
    least=1,
)
CALIBRATE: Final = Flag(
    ("--calibrate",), "Measure again how long passes take, and save it for speculation and --device auto."
)
COLD: Final = Flag(("--cold",), "Empty the drafters' tables before every prompt.")
PLOT: Final = Flag(("--plot",), "Save a plot: a .png, .svg or .pdf file.", metavar="FILE")
STATE: Final = Flag(("--state",), "Keep finished answers in FILE, and continue from those it holds.", metavar="FILE")
SAVE_PROFILE: Final = Flag(
    ("--save-profile",),
    "Measure the memory bandwidth, and the memory of a process without a model (about 4 seconds), and save them for "
    "plans on this machine.",
)
PROFILE_NAME: Final = Flag(("--profile-name",), "Save them under this name, for 'plan --device NAME'.", metavar="NAME")

COMPILE: Final = Flag(
    ("--compile",),
    "Compile the kernels for an NVIDIA GPU ahead of its first use; ARCH is such as sm_87.",
    metavar="ARCH",
)

# --- models that are kept ---

NAME: Final = Flag(("--name",), "Name that the model gets in the store.", metavar="NAME")
FORCE: Final = Flag(("--force",), "Replace what already exists.")
YES: Final = Flag(("--yes", "-y"), "Do not ask.")
VERIFY: Final = Flag(("--verify",), "Read every file and compare its hash.")

# --- places and output ---

JSON: Final = Flag(("--json",), "Write one JSON document to stdout.", panel=PLACES)
JSON_LINES: Final = Flag(("--json-lines",), "Write one JSON event per line.", panel=PLACES)
QUIET: Final = Flag(("-q", "--quiet"), "Show only errors and warnings.", panel=PLACES)
VERBOSE: Final = Flag(("-v", "--verbose"), "Show more: figures, and tracebacks of unexpected errors.", panel=PLACES)
NO_COLOR: Final = Flag(("--no-color",), "No colours (also NO_COLOR).", panel=PLACES)
STATS: Final = Flag(("--stats/--no-stats",), "Show a line of figures after an answer.", panel=PLACES)
STORE: Final = Flag(("--store",), "Folder where models are kept.", metavar="DIR", panel=PLACES)
CONFIG: Final = Flag(("--config",), "Configuration file.", metavar="FILE", panel=PLACES)
OFFLINE: Final = Flag(("--offline",), "Use only what is on this machine.", panel=PLACES)

# --- embeddings ---

LINES: Final = Flag(("--lines",), "File with one text a line.", metavar="FILE")
PROMPT_NAME: Final = Flag(
    ("--prompt-name",), "Prompt of the model that is put in front of every text, such as query.", metavar="NAME"
)
TRUNCATE: Final = Flag(("--truncate",), "Cut texts that do not fit the context; without it they are refused.")

# --- arguments ---

MODEL_ARGUMENT: Final = Argument(
    "MODEL",
    "The same as -m: a name in the store, org/name, a GGUF file, a folder or a package.",
    complete=model_names,
)
SHOWN_MODEL: Final = Argument(
    "NAME", "A name of the catalogue, or org/name on the Hugging Face hub.", complete=_catalogue_names
)
EMBEDDED_TEXT: Final = Argument("TEXT", "The text, in quotes; without it, every line of --lines or standard input.")
PROMPT_ARGUMENT: Final = Argument("PROMPT", "The prompt, in quotes; the same as -p.")
NAME_ARGUMENT: Final = Argument("NAME", "Name in the store.", complete=stored_names)
TEXTS_ARGUMENT: Final = Argument("TEXT", "UTF-8 text files; each is a separate text.")
BATCH_PROMPTS: Final = Argument(
    "IN",
    "JSON lines with 'prompt' or 'messages' and options, or requests as OpenAI's batches have them. - is stdin.",
)
BATCH_ANSWERS: Final = Argument(
    "OUT", "File of answers, a line for each; lines that it has already are kept. - is stdout."
)
PROMPT_CACHE_ARGUMENT: Final = Argument("DIR", "Folder that was given with --prompt-cache.")
CORPUS_ARGUMENT: Final = Argument("FILE", "Index made by 'edge-rt corpus build'.")
