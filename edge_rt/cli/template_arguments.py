"""What is said about arguments of chat templates, and the one that turns thoughts on and off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import Terminal

if TYPE_CHECKING:
    from edge_rt.runtime.engine import Model

THOUGHT_SWITCHES: Final = ("enable_thinking", "thinking")
"""Arguments that turn thoughts on and off, by the names that templates know."""


def thought_switch(model: Model) -> str | None:
    """Return the argument that turns a model's thoughts on and off; None if its template has none."""
    return next((name for name in THOUGHT_SWITCHES if name in model.template_variables), None)


def warn_of_template(terminal: Terminal, model: Model, arguments: Mapping[str, Any]) -> None:
    """Warn of a template that is not the model's own, and of arguments that it does not read."""
    if model.has_fallback_template:
        from edge_rt.text.template import FALLBACK_WARNING  # late: brings the template engine

        terminal.warn(f"{FALLBACK_WARNING} 'generate --raw' continues a plain text.")
    known = model.template_variables
    unread = [name for name in arguments if name not in known]
    if unread:
        reads = f"it reads {', '.join(sorted(known))}" if known else "it reads none"
        terminal.warn(f"the chat template has no argument {', '.join(unread)}; {reads}.")
