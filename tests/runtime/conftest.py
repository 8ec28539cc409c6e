"""A loaded small model, shared by the tests of this folder."""

from __future__ import annotations

import pytest

from tests.helpers.models import load_package


@pytest.fixture(scope="session")
def shared_model(small_package):
    with load_package(small_package) as model:
        yield model


@pytest.fixture
def model(shared_model):
    """The small model with an empty cache."""
    shared_model.reset()
    return shared_model
