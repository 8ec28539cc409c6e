"""The user's configuration file: where the store is, and what commands take that are not told otherwise.

``config.toml`` in the platform's folder for configuration may hold these keys::

    store = "/path/of/the/store"    # "~" is expanded; a relative path starts at the folder of config.toml
    model = "my-model"              # what commands take without -m: a name, org/name, or a whole path
    memory = "600MiB"               # budget of every command that loads a model and is given no --memory
    experts = "2GiB"                # as --experts
    ctx = 4096                      # as --ctx
    threads = 4                     # as --threads
    device = "vulkan"               # as --device
    device_memory = "4GiB"          # as --device-memory, of models on a GPU with memory of its own
    on_device_error = "cpu"         # as --on-device-error

    [sampling]                      # as --temp, --top-k, --top-p, --min-p and --repeat-penalty
    temperature = 0.7
    repetition_penalty = 1.1

    [presets.poet]                  # used like a model: edge-rt chat -m poet
    model = "qwen3-0.6b"
    system = "You answer in rhymes."
    ctx = 2048                      # also: memory, and max_tokens
    sampling = { temperature = 1.2 }

Flags come first. Of the keys, only ``store`` and the preset that a program names matter to Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from edge_rt.device.names import ON_DEVICE_ERROR, parse_device
from edge_rt.errors import ConfigError, StorageError
from edge_rt.package.expert_sizes import AUTO_EXPERTS, RESIDENT
from edge_rt.package.sampling import SAMPLING_NAMES, fault
from edge_rt.system.byte_size import parse_size, show_size

MAX_CONFIG_BYTES = 1 << 20
_KEYS = (
    "store",
    "model",
    "memory",
    "experts",
    "ctx",
    "threads",
    "device",
    "device_memory",
    "on_device_error",
    "sampling",
    "presets",
)
_PRESET_KEYS = ("model", "system", "memory", "ctx", "max_tokens", "sampling")


@dataclass(frozen=True)
class Preset:
    """A model with settings, under a name of the user's own; None leaves a setting to what it would be without.

    Attributes:
        model: model argument; not a preset.
        system: system message of chats and questions that are given none.
        memory: budget of memory as written in the file.
    """

    model: str
    system: str | None = None
    memory: str | None = None
    ctx: int | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Options of answers, by the names of ``GenerationConfig``."""
        return dict(self.sampling) | ({} if self.max_tokens is None else {"max_tokens": self.max_tokens})


@dataclass(frozen=True)
class Config:
    """Content of the configuration file.

    Attributes:
        store: root folder of the store; None for the platform's default.
        model: model argument of commands that are given none; None for the default model.
        memory: budget of memory as written in the file; None for the available memory.
        experts: where experts are of models that have some, as ``--experts`` says; None leaves it to the plan.
        ctx: tokens of context; None leaves them to the plan.
        threads: threads that compute; None takes every CPU.
        device: what computes; None is ``auto``.
        device_memory: budget of a GPU's own memory as written in the file; None: what is free there.
        on_device_error: what is done where a GPU fails in an answer; None: it ends.
        presets: models with settings, by their names.
    """

    store: Path | None = None
    model: str | None = None
    memory: str | None = None
    experts: str | None = None
    ctx: int | None = None
    threads: int | None = None
    device: str | None = None
    device_memory: str | None = None
    on_device_error: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(default_factory=dict)


def default_config_path() -> Path:
    """Return the path of the user's configuration file."""
    return platformdirs.user_config_path("edge-rt") / "config.toml"


def default_store_root() -> Path:
    """Return the root folder of the store on this platform."""
    return platformdirs.user_data_path("edge-rt") / "store"


def load_config(path: Path | None = None) -> Config:
    """Read the configuration file; a missing file counts as empty.

    Args:
        path: the file; None for the user's.
    """
    path = default_config_path() if path is None else path
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"{path} is too large.", f"The limit is {show_size(MAX_CONFIG_BYTES)}.", "Keep only its keys."
        )
    import tomllib  # most users have no such file

    try:
        values = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML.", f"{error}.", "Correct or remove the file.") from error
    _refuse_unknown(path, "key", values, _KEYS)
    return Config(
        store=_store_path(path, values.get("store")),
        model=_model(path, values.get("model")),
        memory=_memory(path, values.get("memory")),
        experts=_experts(path, values.get("experts")),
        ctx=_count(path, "ctx", values.get("ctx")),
        threads=_count(path, "threads", values.get("threads")),
        device=_device(path, values.get("device")),
        device_memory=_memory(path, values.get("device_memory"), "device_memory"),
        on_device_error=_on_device_error(path, values.get("on_device_error")),
        sampling=_sampling(path, values.get("sampling")),
        presets=_presets(path, values.get("presets")),
    )


def _presets(path: Path, tables: object) -> Mapping[str, Preset]:
    from edge_rt.store.naming import is_name

    if tables is None:
        return {}
    if not isinstance(tables, dict):
        raise _wrong(path, "presets", "a table", tables, "[presets.my-name], with values below it")
    found = {}
    for name, values in tables.items():
        key = f"presets.{name}"
        if not isinstance(values, dict) or not is_name(name):
            raise _wrong(path, key, "a table under the name of a model", values, "[presets.my-name], in lower case")
        _refuse_unknown(path, f"value in [{key}]", values, _PRESET_KEYS)
        system, model = values.get("system"), _model(path, values.get("model"), f"{key}.model")
        if model is None or model in tables:
            raise _wrong(path, f"{key}.model", "a model", model, 'model = "qwen3-0.6b"')
        if system is not None and not isinstance(system, str):
            raise _wrong(path, f"{key}.system", "a text", system, 'system = "You answer in rhymes."')
        found[name] = Preset(
            model,
            system,
            _memory(path, values.get("memory"), f"{key}.memory"),
            _count(path, f"{key}.ctx", values.get("ctx")),
            _count(path, f"{key}.max_tokens", values.get("max_tokens")),
            _sampling(path, values.get("sampling"), f"{key}.sampling"),
        )
    return found


def _refuse_unknown(path: Path, what: str, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(values.keys() - set(known))
    if unknown:
        names = ", ".join(map(repr, known))
        raise ConfigError(f"{path}: unknown {what} {unknown[0]!r:.60}.", f"Known are {names}.", "Correct or remove it.")


def _model(path: Path, value: object, key: str = "model") -> str | None:
    if value is None or (isinstance(value, str) and value and "\0" not in value):
        return value
    raise _wrong(path, key, "a model", value, 'model = "my-model"')


def _experts(path: Path, value: object) -> str | None:
    if value in (None, AUTO_EXPERTS, RESIDENT):
        return None if value is None else str(value)
    try:
        parse_size(value)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(
            f"{path}: the value of 'experts' is not auto, resident or a size.",
            error.numbers,
            'Write it as experts = "auto", experts = "resident" or experts = "2GiB".',
        ) from error
    return str(value)


def _device(path: Path, value: object) -> str | None:
    if value is None:
        return None
    try:
        return str(parse_device(value))
    except ConfigError as error:
        what = f"{path}: the value of 'device' is no device: {str(value)!r:.60}."
        raise ConfigError(what, error.numbers, error.action) from error


def _on_device_error(path: Path, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value in ON_DEVICE_ERROR):
        return value
    raise _wrong(path, "on_device_error", " or ".join(ON_DEVICE_ERROR), value, 'on_device_error = "cpu"')


def _memory(path: Path, value: object, key: str = "memory") -> str | None:
    if value is None:
        return None
    try:
        # A number of bytes may be written without quotes.
        parse_size(value)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(
            f"{path}: the value of '{key}' is not a size.",
            error.numbers,
            f'Write it as {key.rpartition(".")[2]} = "600MiB".',
        ) from error
    return str(value)


def _count(path: Path, key: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise _wrong(path, key, "a whole number of at least 1", value, f"{key} = 4")


def _sampling(path: Path, values: object, key: str = "sampling") -> Mapping[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise _wrong(path, key, "a table", values, f"[{key}], with values below it")
    _refuse_unknown(path, "sampling value", values, SAMPLING_NAMES)
    for name, value in values.items():
        if (wanted := fault(name, value)) is not None:
            raise _wrong(path, f"{key}.{name}", wanted, value, "a value within that range")
    return values


def _wrong(path: Path, key: str, wanted: str, value: object, example: str) -> ConfigError:
    return ConfigError(f"{path}: the value of '{key}' is not {wanted}.", f"It is {value!r:.60}.", f"Write {example}.")


def _store_path(path: Path, value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(path, "store", "a path", value, 'it as a string: store = "/path"')
    try:
        return path.parent / Path(value).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{path}: the value of 'store' names an unknown user.", f"{error}.", "Write the path out."
        ) from error


def store_root(flag: str | Path | None = None, *, config: Config | None = None) -> Path:
    """Return the root folder of the store: the flag, else the configuration file, else the platform's default."""
    if flag is not None:
        from edge_rt.package.reader import absolute_path

        return absolute_path(Path(flag))
    return (load_config() if config is None else config).store or default_store_root()
