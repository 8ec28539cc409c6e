"""A loaded small model, shared by the tests of this folder."""

from __future__ import annotations

import pytest

from tests.helpers.models import load_package
from tests.helpers.plain_answers import PROMPT, TOKENS


@pytest.fixture(scope="session")
def shared_model(small_package):
    with load_package(small_package) as model:
        yield model


@pytest.fixture
def model(shared_model):
    """The small model with an empty cache."""
    shared_model.reset()
    return shared_model


@pytest.fixture(scope="module")
def plain_answer(native_package):
    """Return a function of cache format and sampling that gives the tokens of the answer to a prompt."""
    answers = {}

    def answer(kv_format, sampling, prompt=PROMPT):
        key = (kv_format, str(sampling), prompt)
        if key not in answers:
            with load_package(native_package, kv=kv_format, spec="off") as model:
                answers[key] = model.generate(prompt, max_tokens=TOKENS, **sampling).token_ids
        return answers[key]

    return answer
