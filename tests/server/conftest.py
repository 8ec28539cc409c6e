"""A server of a small model whose answers are noise."""

from __future__ import annotations

import pytest

from edge_rt.export import export_model
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.small import NO_SPECIALS

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.helpers.served import models_of, served

ENDLESS = {"temperature": 0, "logit_bias": {str(token): -100 for token in NO_SPECIALS}}
"""Greedy, and only ``max_tokens`` ends the answer."""


@pytest.fixture(scope="session")
def long_package(made_once, tmp_path_factory):
    """A package with 4,096 tokens of context."""
    require_native()
    checkpoint = tmp_path_factory.mktemp("long") / "long.gguf"

    def make(path):
        write_llama_gguf(checkpoint, context=4096)
        export_model(checkpoint, path, profile="native")

    return made_once("long", make)


@pytest.fixture(scope="session")
def running(native_package):
    with served(models_of({"small": native_package}, slots=3, ctx=256)) as (server, client):
        yield server, client


@pytest.fixture
def client(running):
    return running[1]


@pytest.fixture
def server(running):
    return running[0]


@pytest.fixture(scope="session")
def alone(native_package):
    """The same model, for what an answer has to be."""
    with load_package(native_package, ctx=256, spec="off") as model:
        yield model
