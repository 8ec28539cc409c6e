"""Fixtures of all tests: a small model with random weights, and the real one, as checkpoints and packages."""

from __future__ import annotations

import signal

import platformdirs
import pytest

from edge_rt.export import export_model
from edge_rt.store import fetch_source, open_store
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.native_profile import require_native


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory):
    """A llama checkpoint of two layers, 512 tokens of context, ChatML; its answers are noise, its sizes real."""
    path = tmp_path_factory.mktemp("checkpoint") / "small.gguf"
    write_llama_gguf(path, context=512)
    return path


@pytest.fixture(scope="session")
def small_package(small_gguf, tmp_path_factory):
    """The portable package of ``small_gguf``; nobody may change it."""
    out = tmp_path_factory.mktemp("package") / "small"
    export_model(small_gguf, out, profile="portable")
    return out


@pytest.fixture(scope="session")
def native_package(small_gguf, tmp_path_factory):
    """The native package of ``small_gguf``; nobody may change it."""
    require_native()
    out = tmp_path_factory.mktemp("package") / "native"
    export_model(small_gguf, out, profile="native")
    return out


@pytest.fixture(scope="session")
def smollm2_gguf():
    """The real SmolLM2-135M-Instruct, fetched once per machine through edge-rt's own sources."""
    store = open_store(platformdirs.user_cache_path("edge-rt") / "tests")
    return fetch_source("smollm2-135m-instruct", store=store).path


@pytest.fixture(scope="session")
def smollm2_package(smollm2_gguf, tmp_path_factory):
    """The real model with ONNX Runtime's operators and int8 activations; nobody may change it."""
    out = tmp_path_factory.mktemp("smollm2") / "int8"
    export_model(smollm2_gguf, out, profile="portable")
    return out


@pytest.fixture(scope="session")
def smollm2_native_package(smollm2_gguf, tmp_path_factory):
    """The real model with edge-rt's operators; nobody may change it."""
    require_native()
    out = tmp_path_factory.mktemp("smollm2") / "native"
    export_model(smollm2_gguf, out, profile="native")
    return out


@pytest.fixture(scope="session")
def smollm2_float_package(smollm2_gguf, tmp_path_factory):
    """The real model with float activations, which the recorded answers were made with."""
    out = tmp_path_factory.mktemp("smollm2") / "float"
    export_model(smollm2_gguf, out, profile="portable", activations="float")
    return out


def pytest_configure(config):
    """Undo what a shell does to programs it starts in the background: tests send signals to programs of their own."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    """Add the option of the fidelity test."""
    parser.addoption("--prompts", help="JSON lines with 'turns' (Spec-Bench's question.jsonl) for the fidelity test")


def pytest_collection_modifyitems(items):
    """Put sessions with thread pools of their own first: ONNX Runtime refuses them once the process has a pool."""
    items.sort(key=lambda item: item.get_closest_marker("own_pools") is None)
