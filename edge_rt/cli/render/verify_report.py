"""The results of ``edge-rt verify``, as JSON and as displayed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import Terminal, number
from edge_rt.cli.render.inspect_report import bits_text
from edge_rt.device.names import CPU_BITS
from edge_rt.errors import ContextOverflow

if TYPE_CHECKING:
    from edge_rt.measure.verify import Answer
    from edge_rt.runtime.speculation.cost_model import RowCosts
    from edge_rt.text.tokenizer import Tokenizer


def markdown(terminal: Terminal, rows: Sequence[tuple[str, ...]], *, right: Sequence[int]) -> None:
    """Write rows, the first of which is the header; ``right`` are the right-aligned columns."""
    # At least two characters wide, so that the rule below the header can mark the alignment.
    widths = [max(2, *(len(row[index]) for row in rows)) for index in range(len(rows[0]))]
    rule = tuple("-" * (width - 1) + ":" if index in right else "-" * width for index, width in enumerate(widths))
    for row in (rows[0], rule, *rows[1:]):
        cells = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        terminal.line(f"| {' | '.join(cells)} |")


def print_row_costs(terminal: Terminal, costs: RowCosts) -> None:
    """Write the latency of passes: a line for every number of rows, two columns for every context depth."""
    header = (
        "rows of one pass",
        *(name for depth in costs.depths for name in (f"ms @ {depth}", f"relative @ {depth}")),
    )
    rows = [
        (str(count), *(cell for line in costs.ms for cell in (f"{line[index]:.2f}", f"{line[index] / line[0]:.2f}x")))
        for index, count in enumerate(costs.rows)
    ]
    markdown(terminal, [header, *rows], right=range(len(header)))


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
    if CPU_BITS in document["run"]:
        terminal.line(f"{document['run']['device']}: {bits_text(document['run'])}")
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
