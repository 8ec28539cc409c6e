"""Runs the worker that traces a model, and reads its answer; torch stays in that process."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import EdgeRTError, InvalidPackage, RuntimeUnavailable, UnsupportedModel, VersionMismatch
from edge_rt.export.sources.safetensors_folder import read_json
from edge_rt.export.traced.worker import ANSWER_FILE, GRAPH_FILE, LOGITS_FILE
from edge_rt.system.machine import install_command

NEEDED: Final = {"torch": (2, 11), "transformers": (5, 23), "onnxscript": (0, 7)}
"""Distribution that a trace needs -> its oldest version."""
EXTRA: Final = "transformers"
"""The extra that names them."""
_CHATTER_FILE: Final = "chatter.txt"
_SHOWN_CHATTER: Final = 2000
_MAX_ANSWER: Final = 1 << 20


@dataclass(frozen=True)
class ModelNumbers:
    """Dimensions that the model's configuration states and its graph does not; 0 where it states none."""

    architecture: str
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    tied_embedding: bool
    num_parameters: int


@dataclass(frozen=True)
class Trace:
    """What the worker wrote.

    Attributes:
        logits: those, float32 ``[len(token_ids), vocabulary]``.
    """

    graph: Path
    exporter: str
    numbers: ModelNumbers
    token_ids: tuple[int, ...]
    logits: npt.NDArray[Any]


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_tracer(version_of: Callable[[str], str | None] = installed_version) -> None:
    """Refuse an environment that lacks what a trace needs; nothing is imported."""
    found = {name: version_of(name) for name in NEEDED}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        raise RuntimeUnavailable(
            "Exporting through transformers needs packages that are not installed.",
            f"Missing: {', '.join(missing)}.",
            f"Install them: {install_command(EXTRA)}.",
        )
    old = [
        f"{name} {version} (at least {'.'.join(map(str, NEEDED[name]))})"
        for name, version in found.items()
        if version is not None and _numbers(version) < NEEDED[name]
    ]
    if old:
        raise VersionMismatch(
            "Exporting through transformers needs newer packages.",
            f"Installed: {', '.join(old)}.",
            f"Upgrade them: {install_command(EXTRA, upgrade=True)}.",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdecimal())


def worker_command(folder: Path, out: Path) -> list[str]:
    """Return the command that traces the model of ``folder`` into ``out``."""
    return [sys.executable, "-m", "edge_rt.export.traced.worker", str(folder), str(out)]


def run_worker(folder: Path, out: Path, *, command: Sequence[str] | None = None) -> Trace:
    """Trace the model of a folder into an empty one, where what the libraries print is kept as well."""
    name = folder.resolve().name
    with (out / _CHATTER_FILE).open("wb") as chatter:
        code = subprocess.run(
            worker_command(folder, out) if command is None else list(command),
            stdin=subprocess.DEVNULL,
            stdout=chatter,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code or not (out / ANSWER_FILE).is_file():
        raise InvalidPackage(
            f"{name}: the process that traces the model ended before it was done.",
            f"Exit code {code}. Its last output: {_last_chatter(out)}",
            "If it was killed, there may be too little memory: it holds the weights in float32 more than once.",
        )
    answer = read_json(out / ANSWER_FILE, _MAX_ANSWER)
    if (error := _refusal(name, answer)) is not None:
        raise error
    try:
        return Trace(
            graph=out / GRAPH_FILE,
            exporter=str(answer["exporter"]),
            numbers=ModelNumbers(**answer["model"]),
            token_ids=tuple(answer["token_ids"]),
            logits=np.load(out / LOGITS_FILE, allow_pickle=False),
        )
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InvalidPackage(
            f"{name}: the answer of the process that traces the model is malformed.",
            f"{type(error).__name__}: {error}.",
            "Report this with the name of the checkpoint.",
        ) from error


def _refusal(name: str, answer: dict[str, Any]) -> EdgeRTError | None:
    """Return the error that an answer stands for; None if there is a graph."""
    if "refused" in answer:
        what, numbers = answer["refused"]
        return UnsupportedModel(f"{name} {what}", numbers, "Choose a model that keeps keys and values alone.")
    if "missing" in answer:
        return RuntimeUnavailable(
            "Exporting through transformers needs a package that is not installed.",
            f"{answer['missing']}.",
            f"Install what it needs: {install_command(EXTRA)}.",
        )
    if "failed" in answer:
        return UnsupportedModel(
            f"{name}: transformers could not trace the model.",
            f"{answer['failed']}.",
            "Try other versions of transformers and torch, or choose another model.",
        )
    return None


def chatter(out: Path) -> str:
    """Return what the libraries printed while they traced a model into ``out``."""
    try:
        return (out / _CHATTER_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _last_chatter(out: Path) -> str:
    return " ".join(chatter(out)[-_SHOWN_CHATTER:].split())[-400:] or "none."
