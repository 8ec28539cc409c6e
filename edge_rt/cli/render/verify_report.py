"""The results of ``edge-rt verify``, as JSON and as displayed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import Terminal, number
from edge_rt.errors import ContextOverflow

if TYPE_CHECKING:
    from edge_rt.measure.verify import Answer
    from edge_rt.text.tokenizer import Tokenizer

_LONGER: Final = "try longer answers (-n) or other prompts"


def findings(
    answers: Sequence[Answer],
    modes: Sequence[str],
    formats: Sequence[str],
    header: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Return the results as a JSON object.

    First differences include the texts of their tokens; ``notes`` says which drafters drafted nothing.

    Raises:
        ContextOverflow: no prompt fits the context, so nothing was compared.
    """
    from edge_rt.measure.verify import summary

    document = summary(answers, modes)
    if not document["prompts"]:
        left = document["left_out"][0]
        raise ContextOverflow(left["prompt_tokens"], left["requested_tokens"], left["context_tokens"])
    by_kv = {kv: summary([answer for answer in answers if answer.kv == kv], modes) for kv in formats}
    for part in (document, *by_kv.values()):
        for found in (part["first_difference"], *(item["first_difference"] for item in part["by_drafter"].values())):
            for name in ("plain", "speculative") if found is not None else ():
                token = found[name]
                found[f"{name}_text"] = None if token is None else tokenizer.decode([token], skip_special=False)
    document["by_kv"] = {
        kv: {name: part[name] for name in ("prompts", "identical", "first_difference", "drafted", "by_drafter")}
        for kv, part in by_kv.items()
    }
    return {**document, "notes": _unverified(document), "run": dict(header)}


def _unverified(document: Mapping[str, Any]) -> list[str]:
    """Return the remark about drafters that drafted nothing, if there are such: their answers are plain ones."""
    if not document["drafted"]:
        return [f"nothing was drafted, so nothing was verified: {_LONGER}"]
    found, idle = [], _idle(document)
    if idle:
        found = [f"nothing was drafted by {', '.join(idle)}, so nothing of that was verified: {_LONGER}"]
    for kv, part in document["by_kv"].items():
        if here := [mode for mode in _idle(part) if mode not in idle]:
            found.append(f"with the cache {kv} nothing was drafted by {', '.join(here)}: {_LONGER}")
    return found


def _idle(document: Mapping[str, Any]) -> list[str]:
    return [mode for mode, item in document["by_drafter"].items() if not item["drafted"]]


def print_findings(terminal: Terminal, document: Mapping[str, Any]) -> None:
    """Write a table of the drafters, and the first difference of each one."""
    rows = [("drafter", "prompts", "identical", "tokens", "rows drafted", "tok/step")]
    for mode, item in document["by_drafter"].items():
        counts = (number(item[name]) for name in ("prompts", "identical", "tokens", "drafted"))
        per_step = item["tokens_per_step"]
        rows.append((mode, *counts, "-" if per_step is None else f"{per_step:.2f}"))
    terminal.table(rows, right=(1, 2, 3, 4, 5))
    for mode, item in document["by_drafter"].items():
        if (found := item["first_difference"]) is not None:
            terminal.line(
                f"{mode} first differs in prompt {found['prompt']} ({found['kv']}) at token {found['position']}: "
                f"plain {_token(found, 'plain')}, speculative {_token(found, 'speculative')}"
            )
    if document["identical"] == document["prompts"]:
        terminal.line(f"every answer is identical{'' if document['drafted'] else ', but nothing was drafted'}")


def tell_unverified(terminal: Terminal, document: Mapping[str, Any]) -> None:
    """Warn about drafters that drafted nothing."""
    for text in document["notes"]:
        terminal.warn(text)


def tell_left_out(terminal: Terminal, document: Mapping[str, Any]) -> None:
    """Warn about prompts that were too long."""
    if left := list(dict.fromkeys(item["prompt"] for item in document["left_out"])):
        numbers = ", ".join(map(str, left[:20])) + (", ..." if len(left) > 20 else "")
        terminal.warn(f"{len(left)} left out, too long for the context: {numbers}")


def _token(found: Mapping[str, Any], name: str) -> str:
    return "the end" if found[name] is None else f"{found[name]} {found[f'{name}_text']!r}"
