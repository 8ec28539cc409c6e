"""Tables of ``edge-rt bench``: Markdown, ready to be pasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_rt.cli.render.console import Terminal

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.cost_model import RowCosts


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
