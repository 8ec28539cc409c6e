"""How far every family is from transformers, case by case: the figures of ``docs/families.md``.

::

    python -m tests.family_figures [CASE ...]

A figure is the largest difference of a logit over the largest logit, over 44 tokens of a small random checkpoint
(``tests/data/families``): of the native graph and of the numpy reference in float64, each from a folder and, behind a
slash, from a GGUF file of the same weights. What is refused is named.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from edge_rt.errors import UnsupportedModel
from tests.export.families.test_families import DESCRIBED, LOADED, error, reference_logits
from tests.helpers.family_cases import write_folder, write_gguf
from tests.helpers.graphs import Built


def figure(measure: Callable[[], float]) -> str:
    """Return a figure, or what is refused."""
    try:
        return f"{measure():.1e}"
    except UnsupportedModel as refusal:
        return f"refused: {refusal.numbers}"


def figures(name: str, folder: Path) -> list[str]:
    """Return the figures of a case."""
    case = LOADED[name]
    paths = [write_folder(folder / "m", case)]
    if case.gguf is None:
        paths.append(write_gguf(folder / "m.gguf", case))

    def graph(path: Path) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = Built(path, Path(work), "int8", profile="native")
            return error(built.run(case.tokens), case.logits)

    references = [figure(lambda path=path: error(reference_logits(path, case.tokens), case.logits)) for path in paths]
    graphs = [figure(lambda path=path: graph(path)) for path in paths]
    return [" / ".join(dict.fromkeys(graphs)) if "refused" in graphs[0] else " / ".join(graphs), " / ".join(references)]


def main() -> None:
    """Print a row of a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    given = parser.parse_args()
    print("| case | native graph | reference |\n|---|---|---|")
    for name in given.cases or DESCRIBED:
        with tempfile.TemporaryDirectory() as folder:
            print(f"| `{name}` | {' | '.join(figures(name, Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main()
