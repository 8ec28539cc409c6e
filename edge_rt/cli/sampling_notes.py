"""What is said about sampling: advice of the package that does not apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_rt.cli.render.console import Terminal

if TYPE_CHECKING:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.engine import Model


def note_unused_penalty(terminal: Terminal, model: Model, options: GenerationConfig, *, in_chat: bool = False) -> None:
    """Say that greedy answers do without the repetition penalty that the package advises.

    Args:
        terminal: receives the note.
        model: the model.
        options: options of the next generations.
        in_chat: name the slash command instead of the flag.
    """
    advice = model.package.manifest.sampling
    penalty = None if advice is None else advice.given.get("repetition_penalty")
    if options.temperature != 0 or options.repetition_penalty is not None or penalty in (None, 1.0):
        return
    how = f"/set repetition_penalty {penalty}" if in_chat else f"--repeat-penalty {penalty}"
    terminal.note(
        f"at temperature 0 no advice of the package is used, not even its repetition penalty; {how} asks for it"
    )
