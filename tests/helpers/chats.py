"""Conversations of the command line, without a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from edge_rt.cli.chat.conversation import Conversation
from edge_rt.cli.options.groups import LoadFlags, PlaceFlags, SpeculationFlags
from edge_rt.cli.render.console import Terminal
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.load.options import LoadOptions


def load_options(spec: str | None = None, **flags: Any) -> LoadOptions:
    """Return how a command with these flags loads a model; what its passes cost is kept nowhere."""
    return LoadFlags(**flags).options(PlaceFlags(), SpeculationFlags(spec=spec)).but(costs=None)


def make_chat(
    package: Path,
    folder: Path,
    load: LoadOptions | None = None,
    *,
    max_tokens: int = 2,
    config: Path | None = None,
    **more: Any,
) -> Conversation:
    """Return a greedy chat with a package; its store is in ``folder``."""
    greedy = GenerationConfig(temperature=0.0, max_tokens=max_tokens, spec=more.pop("answers", None))
    options = more.pop("options", greedy)
    places = PlaceFlags(store=folder / "store", config=config)
    terminal = Terminal(io.StringIO(), io.StringIO())
    return Conversation(terminal, str(package), places, load or load_options(), options, **more)
