"""Fixtures of all tests: a small model with random weights, as a checkpoint and as a package."""

from __future__ import annotations

import pytest

from edge_rt.export import export_model
from tests.helpers.gguf_factory import write_llama_gguf


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory):
    """A llama checkpoint of two layers, 512 tokens of context, ChatML; its answers are noise, its sizes real."""
    path = tmp_path_factory.mktemp("checkpoint") / "small.gguf"
    write_llama_gguf(path, context=512)
    return path


@pytest.fixture(scope="session")
def small_package(small_gguf, tmp_path_factory):
    """The package of ``small_gguf``; nobody may change it."""
    out = tmp_path_factory.mktemp("package") / "small"
    export_model(small_gguf, out)
    return out
