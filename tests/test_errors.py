"""Errors survive copies and the way to another process."""

from __future__ import annotations

import copy
import errno
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from edge_rt import errors
from edge_rt.cli.render.console import OutputFailed
from edge_rt.errors import as_json, kind_of

MADE = {
    errors.QueueFull: lambda: errors.QueueFull(3, 2.5),
    errors.ContextOverflow: lambda: errors.ContextOverflow(900, 100, 512, is_estimate=True),
    errors.EncodingBudgetExceeded: lambda: errors.EncodingBudgetExceeded(900, 512, "412MiB"),
    errors.ReferenceBudgetExceeded: lambda: errors.ReferenceBudgetExceeded(900, 512, is_estimate=True),
}
"""Those whose constructors take something else than three sentences."""


def kinds(root=errors.EdgeRTError):
    """Return a class of errors and all that derive from it."""
    return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]


def facts(error):
    return type(error), str(error), error.args, vars(error), error.to_json()


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", sorted({*kinds(), OutputFailed}, key=lambda kind: kind.__name__))
def test_every_error_can_be_pickled_and_copied(kind, copied):
    make = MADE.get(kind, lambda: kind("It failed.", "Got 3, wanted 2.", "Give 2."))
    with pytest.raises(kind) as caught:
        raise make() from KeyError("deeper")
    caught.value.add_note("while reading")
    again = copied(caught.value)
    assert facts(again) == facts(caught.value)
    assert again is not caught.value


def overflowing(_):
    raise errors.ContextOverflow(900, 100, 512)


def test_an_error_in_a_worker_process_leaves_the_pool_usable():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(errors.ContextOverflow, match="900 tokens") as caught:
            pool.submit(overflowing, 0).result()
        assert caught.value.context_tokens == 512
        assert pool.submit(abs, -3).result() == 3


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [(None, "null", "null"), (True, "true or false", "true"), (2.5, "a number", "2.5"), ([1], "an array", "[1]")],
)
def test_values_of_a_file_are_named_as_in_the_file(value, kind, text):
    assert (kind_of(value), as_json(value)) == (kind, text)


@pytest.mark.parametrize(
    ("tokens", "way"),
    [
        ((1, 10**9, 8192), "Ask for at most 8191 tokens."),
        ((300, 300, 512), "Ask for at most 212 tokens, or shorten the prompt by 88 tokens."),
        ((512, 1, 512), "Shorten the prompt by 1 tokens."),
        ((600, 512, 512), "Shorten the prompt, and ask for fewer than 512 tokens."),
    ],
)
def test_a_context_that_overflows_is_told_what_helps(tokens, way):
    error = errors.ContextOverflow(*tokens)
    assert error.action == way
    assert error.is_of_request == way.startswith("Ask for at most 8191")


@pytest.mark.parametrize("folder", ["device", "ort", "runtime"])
def test_what_a_model_is_loaded_with_is_told_in_words_for_python_as_well(folder):
    sources = (Path(errors.__file__).parent / folder).rglob("*.py")
    assert not [path.name for path in sources if re.search(r"[Uu]se --|with --", path.read_text("utf-8"))]


NO_ROOM = "libx.so: failed to map segment from shared object"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "The memory is exhausted. An allocation failed. Do."),
        (MemoryError("no 8 MiB"), "The memory is exhausted. no 8 MiB. Do."),
        (ImportError(NO_ROOM), f"The memory is exhausted. {NO_ROOM}. Do."),
        (
            OSError(errno.ENOMEM, "Cannot allocate memory"),
            "The memory is exhausted. [Errno 12] Cannot allocate memory. Do.",
        ),
    ],
)
def test_what_says_that_the_memory_is_exhausted(error, told):
    assert errors.is_out_of_memory(error)
    assert str(errors.out_of_memory(error, "Do.")) == told


@pytest.mark.parametrize("error", [ImportError("No module named x"), OSError(errno.EACCES, "Permission denied")])
def test_what_does_not(error):
    assert not errors.is_out_of_memory(error)
