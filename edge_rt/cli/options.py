"""Flags that several verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.baseline_memory import own_bytes
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.speculation import SpecFlags
from edge_rt.errors import ConfigError
from edge_rt.runtime.config import GenerationConfig

if TYPE_CHECKING:
    from edge_rt.store import Store

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
"""The same as the store's, which is not imported for the sake of ``--help``."""

_GENERATION: Final = "Generation"
_PLACES: Final = "Places and output"
_D: Final = GenerationConfig()


def _model_names(incomplete: str) -> list[str]:
    """Complete the names of the store; paths are completed by the shell."""
    from edge_rt.errors import EdgeRTError
    from edge_rt.store import load_recipes, open_store

    try:
        names = {*open_store().names(), *load_recipes()}
    except EdgeRTError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def _option(*names: str, text: str, panel: str | None = None, default: object = None, **more: Any) -> Any:
    shown = False if default is None else str(default)
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=shown, **more)


def _of_model(name: str) -> str:
    return f"the model's, or {getattr(_D.sampling(), name)}"


ModelOption = Annotated[
    str | None,
    _option(
        "-m",
        "--model",
        text="Folder of a package, name in the store, GGUF file, or org/name on the hub.",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        autocompletion=_model_names,
    ),
]
SystemOption = Annotated[str | None, _option("-s", "--system", text="System message.", metavar="TEXT")]
CtxOption = Annotated[
    int | None,
    _option("-c", "--ctx", text="Tokens of context.", default="the model's, up to 8192", metavar="N"),
]
ThreadsOption = Annotated[
    int | None,
    _option("-t", "--threads", text="Threads that compute.", default="every usable CPU", metavar="N", min=1),
]
DeviceOption = Annotated[str, _option("--device", text="auto or cpu.", default="auto", metavar="DEVICE")]
MemoryOption = Annotated[
    str | None,
    _option(
        "--memory",
        text="Budget of memory, such as 600MiB or 2GiB; never exceeded.",
        default="the configuration's, or what is available",
        metavar="SIZE",
    ),
]
KvOption = Annotated[
    str | None,
    _option(
        "--kv-type",
        "--kv",
        text="Format of the KV cache (see inspect), or auto: the fastest that fits.",
        default="the package's first",
        metavar="FORMAT",
    ),
]
IsaOption = Annotated[
    str | None,
    # For measurements and reports of faults; 'edge-rt doctor' lists the names.
    _option("--isa", text="Instruction set of the native operators.", default="the best", metavar="NAME", hidden=True),
]

MaxTokensOption = Annotated[
    int | None,
    _option("-n", "--max-tokens", text="Most tokens of an answer.", panel=_GENERATION, default="no limit", metavar="N"),
]
TempOption = Annotated[
    float | None,
    _option(
        "--temp", text="Temperature; 0 is greedy.", panel=_GENERATION, default=_of_model("temperature"), metavar="T"
    ),
]
TopPOption = Annotated[
    float | None,
    _option("--top-p", text="Keep the likeliest tokens up to this sum.", panel=_GENERATION, default=_of_model("top_p")),
]
TopKOption = Annotated[
    int | None,
    _option("--top-k", text="Keep the k likeliest tokens; 0 keeps all.", panel=_GENERATION, default=_of_model("top_k")),
]
MinPOption = Annotated[
    float | None,
    _option(
        "--min-p", text="Drop tokens below this part of the likeliest.", panel=_GENERATION, default=_of_model("min_p")
    ),
]
RepeatOption = Annotated[
    float | None,
    _option(
        "--repeat-penalty",
        text="Penalty for tokens seen before; 1 is off.",
        panel=_GENERATION,
        default=_of_model("repetition_penalty"),
    ),
]
PresenceOption = Annotated[
    float | None,
    _option(
        "--presence-penalty", text="Penalty for tokens in the answer.", panel=_GENERATION, default=_D.presence_penalty
    ),
]
FrequencyOption = Annotated[
    float | None,
    _option(
        "--frequency-penalty",
        text="Penalty for each occurrence in the answer.",
        panel=_GENERATION,
        default=_D.frequency_penalty,
    ),
]
BiasOption = Annotated[
    list[str] | None,
    _option(
        "--logit-bias", text="Add to a token's logit; repeatable.", panel=_GENERATION, default=None, metavar="ID=VALUE"
    ),
]
SeedOption = Annotated[
    int | None,
    _option("--seed", text="Makes sampling repeat.", panel=_GENERATION, default="a new one", metavar="N"),
]
StopOption = Annotated[
    list[str] | None,
    _option("--stop", text="Text that ends the answer; repeatable.", panel=_GENERATION, metavar="TEXT"),
]
AcceptOption = Annotated[
    str | None,
    _option(
        "--accept",
        text="Which drafted tokens stay: match (the text of plain decoding) or ratio (--spec recycling only).",
        panel=_GENERATION,
        default=_D.accept,
        metavar="RULE",
    ),
]

NoGuardOption = Annotated[
    bool,
    typer.Option(
        "--no-repetition-guard", help="Let an answer go on that goes round in circles.", rich_help_panel=_GENERATION
    ),
]

JsonOption = Annotated[bool, _option("--json", text="Write one JSON document to stdout.", panel=_PLACES)]
QuietOption = Annotated[bool, _option("-q", "--quiet", text="Only errors and warnings on stderr.", panel=_PLACES)]
VerboseOption = Annotated[bool, _option("-v", "--verbose", text="More on stderr, tracebacks included.", panel=_PLACES)]
NoColorOption = Annotated[bool, _option("--no-color", text="No colours (also NO_COLOR).", panel=_PLACES)]
StoreOption = Annotated[Path | None, _option("--store", text="Folder of the store.", panel=_PLACES, metavar="DIR")]
ConfigOption = Annotated[Path | None, _option("--config", text="Configuration file.", panel=_PLACES, metavar="FILE")]
OfflineOption = Annotated[bool, _option("--offline", text="Use what is on this machine only.", panel=_PLACES)]
StatsOption = Annotated[
    bool | None,
    typer.Option("--stats/--no-stats", help="A line of figures after an answer.", rich_help_panel=_PLACES),
]


def generation_config(
    *,
    max_tokens: int | None,
    temp: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repeat_penalty: float | None,
    presence_penalty: float | None,
    frequency_penalty: float | None,
    logit_bias: Sequence[str] | None,
    seed: int | None,
    stop: Sequence[str] | None,
    accept: str | None = None,
) -> GenerationConfig:
    """Return the options that the flags ask for; a flag that is absent leaves the default.

    Raises:
        ConfigError: a value is out of range.
    """
    flags: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temp,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repeat_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": parse_logit_bias(logit_bias or ()) or None,
        "seed": seed,
        "stop": tuple(stop or ()) or None,
        "accept": accept,
    }
    return _D.with_options(**{name: value for name, value in flags.items() if value is not None})


def parse_logit_bias(texts: Sequence[str]) -> dict[int, float]:
    """Read ``ID=VALUE`` pairs.

    Raises:
        ConfigError: one is malformed.
    """
    result = {}
    for text in texts:
        token, equals, value = text.partition("=")
        try:
            if not equals:
                raise ValueError("no '='")
            result[int(token)] = float(value)
        except ValueError as error:
            raise ConfigError(
                "A logit bias is malformed.", f"Got {text!r:.60}: {error}.", "Write it as ID=VALUE, for example 42=-5."
            ) from error
    return result


@dataclass(frozen=True)
class ModelFlags:
    """Which model, and how it is loaded; made where a verb begins, as ``own_bytes`` is then what every verb takes."""

    model: str | None
    ctx: int | None = None
    threads: int | None = None
    device: str = "auto"
    store: Path | None = None
    config: Path | None = None
    offline: bool = False
    kv: str | None = None
    isa: str | None = None
    spec: SpecFlags = field(default_factory=SpecFlags)
    memory: str | None = None
    own_bytes: int = field(default_factory=own_bytes)

    @property
    def budget_bytes(self) -> int | None:
        """The budget of memory: the flag's, or the configuration's; None if there is none.

        Raises:
            ConfigError: it is no size, or the configuration file is wrong.
        """
        from edge_rt.byte_size import parse_size

        given = self.memory
        if given is None:
            from edge_rt.store.config import load_config

            given = load_config(None if self.config is None else self.config.expanduser()).memory
        return None if given is None else parse_size(given)

    @property
    def reference(self) -> str:
        """The model argument, or the default model."""
        return DEFAULT_MODEL if self.model is None else self.model

    def open_store(self) -> Store:
        """Return the store that the flags name.

        Raises:
            ConfigError: the configuration file is wrong or missing.
        """
        return open_the_store(self.store, self.config)


def open_the_store(store: Path | None, config: Path | None) -> Store:
    """Return the store of the flags, the configuration file, or the platform; in this order.

    Raises:
        ConfigError: the configuration file is wrong, or one was named that does not exist.
        StorageError: it cannot be read.
    """
    from edge_rt.store import open_store

    if config is not None and not config.expanduser().exists():
        raise ConfigError(f"{config} does not exist.", "It was named with --config.", "Check the path.")
    return open_store(store, config=None if config is None else config.expanduser())


def make_terminal(
    *, json: bool = False, quiet: bool = False, verbose: bool = False, no_color: bool = False
) -> Terminal:
    """Return the terminal of a verb."""
    return Terminal(quiet=quiet, verbose=verbose, no_color=no_color, is_json=json)


def one_of(argument: str | None, option: str | None, name: str) -> str | None:
    """Return a value that may be given with or without its flag.

    Raises:
        ConfigError: both were given.
    """
    if argument is not None and option is not None:
        raise ConfigError(f"{name} was given twice.", f"Got {argument!r:.80} and {option!r:.80}.", "Give it once.")
    return option if argument is None else argument
