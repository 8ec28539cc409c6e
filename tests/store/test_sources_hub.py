from __future__ import annotations

import pytest

from edge_rt.errors import DownloadError, ModelNotFound
from edge_rt.store.recipes import FileSpec, HubSource
from edge_rt.store.sources_hub import HubOptions, fetch_from_hub, hub_errors, list_repository, reason_of
from tests.helpers.fake_hub import COMMIT, serve_fake_hub
from tests.store.builders import MODEL, sha256

SOURCE = HubSource("org/tiny", COMMIT, "sub/tiny.gguf")
SPEC = FileSpec("tiny.gguf", len(MODEL), sha256(MODEL))


@pytest.fixture
def hub():
    with serve_fake_hub(repos={"org/tiny": {"sub/tiny.gguf": MODEL, "LICENSE": b"MIT"}}) as server:
        yield server


@pytest.fixture
def options(hub, tmp_path):
    return HubOptions(endpoint=hub.endpoint, cache_dir=tmp_path / "cache", token="secret-token")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    return path


def fetch(folder, options, *, source=SOURCE, spec=SPEC, offline=False, seen=None):
    seen = [] if seen is None else seen
    return fetch_from_hub(
        source, spec, folder, lambda done, total: seen.append((done, total)), options, offline=offline
    )


def test_a_repository_is_listed(options):
    listing = list_repository("org/tiny", options)
    assert (listing.revision, listing.license) == (COMMIT, "apache-2.0")
    assert FileSpec("sub/tiny.gguf", len(MODEL), sha256(MODEL)) in listing.files
    assert FileSpec("LICENSE", 3, None) in listing.files


def test_a_file_is_fetched_into_the_folder_and_nowhere_else(folder, options):
    seen = []
    assert fetch(folder, options, seen=seen) == sha256(MODEL)
    assert (folder / "tiny.gguf").read_bytes() == MODEL
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]
    assert seen[-1] == (len(MODEL), len(MODEL))
    assert not (options.cache_dir.exists() and any(path.is_file() for path in options.cache_dir.rglob("*")))


def test_wrong_content_is_refused(folder, options):
    with pytest.raises(DownloadError, match="wrong content"):
        fetch(folder, options, spec=FileSpec("tiny.gguf", len(MODEL), "0" * 64))
    assert not (folder / "tiny.gguf").exists()


def test_a_file_cut_short_is_refused(hub, folder, options):
    hub.truncate.add("sub/tiny.gguf")
    with pytest.raises(DownloadError):
        fetch(folder, options)
    assert not (folder / "tiny.gguf").exists()


def test_a_server_that_is_not_there_is_named(folder, tmp_path):
    # No port 1 is served on any machine.
    options = HubOptions(endpoint="http://127.0.0.1:1", cache_dir=tmp_path / "cache", token="secret-token")
    for ask in (lambda: list_repository("org/tiny", options), lambda: fetch(folder, options)):
        with pytest.raises(
            DownloadError, match=r"^127\.0\.0\.1 cannot be reached.*[.] The connection was refused[.]"
        ) as caught:
            ask()
        assert "HF_ENDPOINT" in caught.value.action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ConnectError: [Errno -2] Name or service not known", "the name cannot be resolved"),
        ("ConnectError: [Errno 101] Network is unreachable", "there is no way to it"),
        ("ProxyError: 407 Proxy Authentication Required", "the proxy lets nothing through"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED", "the certificate is not trusted"),
        ("ReadTimeout: The read operation timed out", "there was no answer in time"),
        ("OSError: Tunnel connection failed: 403 Forbidden", "the proxy lets nothing through"),
        ("HTTPError: 500 Internal Server Error", None),
        ("EntryNotFound: org/tinyproxy-1b has no such file", None),
        ("EntryNotFound: none at https://hub.example/org/certificate-1b/resolve/main/x.gguf", None),
    ],
)
def test_reasons_are_told_in_words(text, reason):
    assert reason_of(text) == reason


@pytest.mark.parametrize(
    ("offline", "cause", "message"),
    [
        (True, None, "is not in the hub library's cache. Offline mode is on"),
        (False, OSError("Connection reset by peer"), "cannot be reached.*[.] The connection was broken"),
        (False, None, "could not be fetched from"),
    ],
)
def test_offline_mode_is_told_of_only_where_it_is_on(offline, cause, message):
    from huggingface_hub.errors import LocalEntryNotFoundError

    with pytest.raises(DownloadError, match=message), hub_errors("a/b/c", HubOptions(), offline=offline):
        raise LocalEntryNotFoundError("cannot find the requested files") from cause


def test_a_missing_repository(folder, options):
    with pytest.raises(ModelNotFound, match="does not exist on the hub"):
        list_repository("org/none", options)
    with pytest.raises(ModelNotFound, match="does not exist on the hub"):
        fetch(folder, options, source=HubSource("org/none", COMMIT, "x.gguf"))


def test_a_missing_file(folder, options):
    with pytest.raises(DownloadError, match="could not be fetched"):
        fetch(folder, options, source=HubSource("org/tiny", COMMIT, "x.gguf"))


def test_a_gated_repository_says_what_to_do_and_not_the_token(hub, options):
    hub.gated.add("org/tiny")
    with pytest.raises(DownloadError, match="hf auth login") as caught:
        list_repository("org/tiny", options)
    assert "secret-token" not in str(caught.value)


def test_offline_asks_nobody(hub, folder, options):
    with pytest.raises(DownloadError):
        fetch(folder, options, offline=True)
    assert hub.requests == []


def test_offline_takes_the_file_of_the_library_cache(hub, folder, options):
    from huggingface_hub import hf_hub_download

    hf_hub_download("org/tiny", "sub/tiny.gguf", endpoint=hub.endpoint, cache_dir=options.cache_dir, token=False)
    hub.requests.clear()
    source = HubSource("org/tiny", "main", "sub/tiny.gguf")
    assert fetch(folder, options, source=source, offline=True) == sha256(MODEL)
    assert hub.requests == []
