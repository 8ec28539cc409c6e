"""Advice in a chat when memory is short: commands that can be typed there, not command-line flags."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from edge_rt.byte_size import parse_size
from edge_rt.errors import (
    ConfigError,
    EncodingBudgetExceeded,
    InvalidDrafter,
    MemoryBudgetExceeded,
    ReferenceBudgetExceeded,
)

if TYPE_CHECKING:
    from edge_rt.runtime.load.options import LoadOptions

WAYS: Final = (
    "Change the context with /ctx N; for another budget, cache or drafter leave with /exit and start again with "
    "--memory, --device-memory, --kv-type or --spec."
)

LEAVE: Final = "/exit and "
"""Written before a command line."""


def setting_in_chat(setting: tuple[str, ...], reference: str, load: LoadOptions, *, is_same_model: bool) -> str:
    """Return how to get a setting that fits from within a chat.

    Args:
        setting: flags of the setting, from a plan's alternative.
        reference: the model argument of the load that does not fit.
        load: its options, with a budget in bytes if there is one.
        is_same_model: whether it is the current model with another context.

    Returns:
        A slash command if only the context differs; else the instruction to leave and the command line to start again.
    """
    given = dict(zip(setting[::2], setting[1::2], strict=True))
    kept = {
        "--kv-type": load.kv,
        "--spec": load.spec,
        "--draft-max": None if load.draft_max is None else str(load.draft_max),
        "--corpus": None if load.corpus is None else str(load.corpus),
        "--drafter": None if load.drafter is None else str(load.drafter),
    }
    budgets = {"--memory": load.memory, "--device-memory": load.device_memory}
    other = {name: given.get(name) for name in kept} != kept or any(
        (parse_size(given[name]) if name in given else None) != budget for name, budget in budgets.items()
    )
    if is_same_model and not other and "--ctx" in given:
        return f"/ctx {given['--ctx']}"
    return f"{LEAVE}{shlex.join(['edge-rt', 'chat', '-m', reference, *setting])}"


@contextmanager
def in_words_of_a_chat() -> Generator[None]:
    """Rewrite the advice of memory errors, so that it names what can be done in a chat."""
    try:
        yield
    except EncodingBudgetExceeded as error:
        # Another context would not fit a longer text.
        way = "leave with /exit, free memory and start again"
        if error.enough is not None:
            way = f"leave with /exit and start again with --memory {error.enough}"
        raise EncodingBudgetExceeded(error.stretch_bytes, error.room_bytes, error.enough, way=way) from error
    except ReferenceBudgetExceeded as error:
        way = (
            "Give a shorter text, do without one (/set reference none), or leave with /exit and start again with a "
            "larger --memory."
        )
        raise ReferenceBudgetExceeded(
            error.reference_tokens, error.room_tokens, is_estimate=error.is_estimate, way=way
        ) from error
    except MemoryBudgetExceeded as error:
        raise MemoryBudgetExceeded(error.what, error.numbers, WAYS) from error


@contextmanager
def flags_of_a_chat(reference: str) -> Generator[None]:
    """Explain, if flags do not work with another model, that they are the chat's flags, and how to change them."""
    try:
        yield
    except (ConfigError, InvalidDrafter) as error:
        start = f"Leave with /exit and start again with other flags: edge-rt chat -m {shlex.quote(reference)}"
        raise ConfigError(error.what, error.numbers, start) from error
