"""The Python API: load a model by path or name, pull one, export one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_rt.package import is_package
from edge_rt.runtime.engine import DEFAULT_PREFILL_CHUNK, Model, load_package


def load(
    model: str | Path,
    *,
    ctx: int | None = None,
    threads: int | None = None,
    device: str = "auto",
    store: Path | None = None,
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
) -> Model:
    """Load a package.

    Nothing is fetched or exported here: see ``pull`` and ``export_model``.

    Args:
        model: folder of a package, or the name of one in the store.
        ctx: capacity of the context in tokens; None takes the model's own, up to 8192.
        threads: None takes every CPU this process may use; the number is one per process.
        device: ``"auto"`` or ``"cpu"``.
        store: folder of the store; None takes the configured one.
        prefill_chunk: tokens of one pass over a prompt.

    Raises:
        ModelNotFound: there is no such package.
        InputError: the package cannot be used.
        ConfigError: an argument is out of range.
        MemoryBudgetExceeded: the model does not fit the memory.
        RuntimeUnavailable: ONNX Runtime or the device is missing.
    """
    return load_package(_locate(model, store), ctx=ctx, threads=threads, device=device, prefill_chunk=prefill_chunk)


def _locate(model: str | Path, store: Path | None) -> Path:
    path = Path(model).expanduser()
    if is_package(path):
        return path
    from edge_rt.store import open_store

    return open_store(store).package_path(str(model))


def pull(ref: str, **options: Any) -> Any:
    """Fetch a model and export it into the store; see ``edge_rt.store.pull``."""
    from edge_rt.store import open_store, pull as pull_into

    store = options.pop("store", None)
    return pull_into(ref, store=open_store(store), **options)
