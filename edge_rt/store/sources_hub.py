"""Fetching files from the Hugging Face hub, or from a server with the same API, with the user's login."""

from __future__ import annotations

import errno
import inspect
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from edge_rt.errors import DownloadError, EdgeRTError, ModelNotFound, StorageError
from edge_rt.store.hub_files import HubListing
from edge_rt.store.recipes import FileSpec, HubSource
from edge_rt.store.sources_local import check_content, write_checked
from edge_rt.system.checkpoint_names import find_snapshot
from edge_rt.system.files import read_chunks, replace, sha256_file, storage_errors, sync

_REASONS: Final = {
    "the name cannot be resolved": (
        r"name resolution|name or service not known|getaddrinfo|nodename nor servname|no address associated"
    ),
    "the proxy lets nothing through": r"proxyerror|cannot connect to proxy|tunnel connection failed",
    "the certificate is not trusted": r"certificate",
    "there is no way to it": r"network is unreachable|no route to host",
    "the connection was refused": r"connection refused",
    "there was no answer in time": r"timed? ?out",
    "the connection was broken": r"connection reset|disconnected|connection broken|connection aborted",
}
"""What is said -> the words by which it is known, the clearest first."""
_ADDRESS: Final = re.compile(r"https?://\S+", re.IGNORECASE)
"""Names in it may be any words."""


def reason_of(text: str) -> str | None:
    """Return why a server cannot be reached; None if a text tells of another failure."""
    said = _ADDRESS.sub("", text)
    return next((reason for reason, words in _REASONS.items() if re.search(words, said, re.IGNORECASE)), None)


def host_of(url: str) -> str:
    """Return the host of an address, without the login that it may hold; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def unreachable(host: str, reason: str, action: str) -> DownloadError:
    """Return the error for a server that cannot be reached."""
    proxy = getproxies().get("https")
    way = f" through the proxy {host_of(proxy)}" if proxy else ""
    return DownloadError(f"{host} cannot be reached{way}.", f"{reason[0].upper()}{reason[1:]}.", action)


LIST_SECONDS = 30.0
CHECK_NETWORK = "Check the network. HTTPS_PROXY names a proxy, HF_ENDPOINT another server with the hub's files."
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubOptions:
    """Which hub is used, and how.

    Attributes:
        endpoint: base URL; None for the hub itself.
        cache_dir: the hub library's cache, which is read and never written; None for the user's.
        token: access token; None for the user's login.
    """

    endpoint: str | None = None
    cache_dir: Path | None = None
    token: str | None = None

    @property
    def host(self) -> str:
        """The server that is asked: the one given, that of ``HF_ENDPOINT``, or the hub's."""
        from huggingface_hub import constants

        return host_of(self.endpoint or constants.ENDPOINT) or "the hub"


@contextmanager
def hub_errors(what: str, options: HubOptions, *, offline: bool = False) -> Iterator[None]:
    """Turn what the hub library raises while ``what`` is asked for into errors of edge-rt.

    Args:
        what: a repository, or a file of one: ``org/name/file``.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        yield
    except EdgeRTError:
        raise
    except GatedRepoError as error:
        raise _gated(what, error) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"{what} does not exist on the hub, or is private.",
            _first_line(error),
            "Check the spelling; for a private one log in with 'hf auth login', or set HF_TOKEN.",
        ) from error
    except OfflineModeIsEnabled as error:
        raise DownloadError(
            f"{what} was not fetched.", "HF_HUB_OFFLINE is set, so the hub library asks no server.", "Unset it."
        ) from error
    except Exception as error:  # the hub library raises its own, its HTTP library's and the Xet client's errors
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            raise _gated(what, error) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{what} could not be written: the disk is full or a limit is reached.", f"{error}.", "Free space."
            ) from error
        # Online it is raised, too, for whatever a server or the network did.
        if offline and isinstance(error, LocalEntryNotFoundError):
            raise DownloadError(
                f"{what} is not in the hub library's cache.",
                "Offline mode is on.",
                "Turn it off, or fetch the file first.",
            ) from error
        _log.info("%s: %s", what, _first_line(error))
        if (reason := _reason(error)) is not None:
            raise unreachable(_asked_host(error) or options.host, reason, CHECK_NETWORK) from error
        raise DownloadError(
            f"{what} could not be fetched from {options.host}.", _first_line(error), "Try again later."
        ) from error


def _gated(what: str, error: Exception) -> DownloadError:
    page = "https://huggingface.co/" + "/".join(what.split("/")[:2])
    return DownloadError(
        f"{what} is gated: its files are given only to who has accepted its licence.",
        _first_line(error),
        f"Accept the licence on {page}, then log in with 'hf auth login', or set HF_TOKEN.",
    )


def _reason(error: BaseException) -> str | None:
    """Return why no server was reached; None if one has answered."""
    if getattr(error, "response", None) is not None:
        return None
    found = reason_of(f"{type(error).__name__}: {error}")
    return found if found is not None or error.__cause__ is None else _reason(error.__cause__)


def _asked_host(error: Exception) -> str | None:
    """Return the host of the request that failed: files may come from another server than their list."""
    try:
        return str(error.request.url.host)  # type: ignore[attr-defined]  # errors of the HTTP library have it, mostly
    except Exception:  # they raise RuntimeError where it is not set
        return None


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300].rstrip('.')}."


def list_repository(repo: str, options: HubOptions) -> HubListing:
    """List the files of a repository at the head of its main branch."""
    from huggingface_hub import HfApi

    with hub_errors(repo, options):
        info = HfApi(endpoint=options.endpoint, token=options.token).model_info(
            repo, files_metadata=True, timeout=LIST_SECONDS
        )
    if info.sha is None:
        raise DownloadError(f"{repo} has no commit.", "The hub returned none.", "Try again later.")
    files = tuple(
        FileSpec(file.rfilename, file.size, None if file.lfs is None else file.lfs.sha256)
        for file in info.siblings or ()
    )
    tags = (tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:"))
    return HubListing(repo, info.sha, next(tags, None), files)


def list_cached(repo: str, options: HubOptions) -> HubListing | None:
    """List the files of a repository that the hub library's cache holds; None if it holds none of it."""
    from huggingface_hub import constants

    folder = find_snapshot(Path(options.cache_dir or constants.HF_HUB_CACHE), repo)
    if folder is None:
        return None
    with storage_errors(folder):
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = tuple(FileSpec(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)
    return HubListing(repo, folder.name, None, files)


def fetch_from_hub(
    source: HubSource,
    spec: FileSpec,
    folder: Path,
    on_bytes: Callable[[int, int | None], None],
    options: HubOptions,
    *,
    offline: bool,
) -> str:
    """Download one file of a repository.

    Args:
        spec: expected size and hash, where known; the file is written to ``folder/spec.name``.
        offline: take the file from the hub library's cache or fail.

    Returns:
        The sha256 of the file.
    """
    target = folder / spec.name
    if offline:
        cached = _download(source, options, offline=True, cache_dir=options.cache_dir)
        return write_checked(read_chunks(cached), target, spec, lambda done: on_bytes(done, spec.size))
    # Into a private folder, not the library's cache: one copy on disk, and a crash leaves nothing in the cache.
    workspace = folder / "hub"
    downloaded = _download(
        source,
        options,
        offline=False,
        local_dir=workspace,
        cache_dir=options.cache_dir,
        **_progress_arguments(lambda done: on_bytes(done, spec.size)),
    )
    with storage_errors(target):
        size = downloaded.stat().st_size
    on_bytes(size, spec.size)  # older versions of the library do not report progress
    digest = sha256_file(downloaded)
    check_content(spec, size, digest)
    with storage_errors(target):
        replace(downloaded, target)
        sync(target)
        shutil.rmtree(workspace)
    return digest


def _download(source: HubSource, options: HubOptions, *, offline: bool, **arguments: Any) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    with hub_errors(f"{source.repo}/{source.file}", options, offline=offline):
        if not offline:
            # Without a network the download retries for half a minute and then raises a less clear error.
            url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=options.endpoint)
            get_hf_file_metadata(url, token=options.token, endpoint=options.endpoint)
        return Path(
            hf_hub_download(
                source.repo,
                source.file,
                revision=source.revision,
                endpoint=options.endpoint,
                token=options.token,
                local_files_only=offline,
                **arguments,
            )
        )


def _progress_arguments(on_bytes: Callable[[int], None]) -> dict[str, Any]:
    """Return the keyword argument that reports bytes; empty if the hub library is too old to have it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import tqdm

    if "tqdm_class" not in inspect.signature(hf_hub_download).parameters:
        return {}

    class ReportingBar(tqdm):
        """Draws nothing and reports the number of bytes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # it has no types
            self._done = int(kwargs.get("initial") or 0)

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            on_bytes(self._done)

    return {"tqdm_class": ReportingBar}
