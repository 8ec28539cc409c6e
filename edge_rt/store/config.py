"""The user's configuration file, which may set the folder of the store and a memory budget.

``config.toml`` in the platform's folder for configuration may hold these keys::

    store = "/path/of/the/store"    # "~" is expanded; a relative path starts at the folder of config.toml
    memory = "600MiB"               # budget of every command that loads a model and is given no --memory
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from edge_rt.errors import ConfigError, StorageError

MAX_CONFIG_BYTES = 1 << 20
_KEYS = ("store", "memory")


@dataclass(frozen=True)
class Config:
    """Content of the configuration file.

    Attributes:
        store: root folder of the store; None for the platform's default.
        memory: budget of memory as written in the file; None for the available memory.
    """

    store: Path | None = None
    memory: str | None = None


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

    Raises:
        ConfigError: not TOML, an unknown key, or a value of the wrong type.
        StorageError: the file cannot be read.
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
        raise ConfigError(f"{path} is too large.", f"Limit {MAX_CONFIG_BYTES} bytes.", "Keep only its keys.")
    try:
        values = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML.", f"{error}.", "Correct or remove the file.") from error
    unknown = sorted(values.keys() - set(_KEYS))
    if unknown:
        known = ", ".join(map(repr, _KEYS))
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}.", f"Known keys: {known}.", "Correct or remove the key.")
    return Config(store=_store_path(path, values.get("store")), memory=_memory(path, values.get("memory")))


def _memory(path: Path, value: object) -> str | None:
    if value is None:
        return None
    # A number of bytes may be written without quotes; the size is parsed where it is used.
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ConfigError(
            f"{path}: the value of 'memory' is not a size.", f"It is {value!r}.", 'Write it as memory = "600MiB".'
        )
    return str(value)


def _store_path(path: Path, value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(
            f"{path}: the value of 'store' is not a path.",
            f"It is {value!r}.",
            'Write it as a string: store = "/path".',
        )
    try:
        return path.parent / Path(value).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{path}: the value of 'store' names an unknown user.", f"{error}.", "Write the path out."
        ) from error


def store_root(flag: str | Path | None = None, *, config: Path | None = None) -> Path:
    """Return the root folder of the store: the flag, else the configuration file, else the platform's default.

    Args:
        flag: folder given on the command line or in a call.
        config: path of a configuration file to read instead of the user's.

    Raises:
        ConfigError: the configuration file is wrong, which does not matter when a flag is given; or the flag names an
            unknown user.
        StorageError: the configuration file cannot be read.
    """
    if flag is not None:
        from edge_rt.package.reader import absolute_path

        return absolute_path(Path(flag))
    return load_config(config).store or default_store_root()
