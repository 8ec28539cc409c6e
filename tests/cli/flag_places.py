"""Where every flag of the command line is declared: python -m tests.cli.flag_places."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

CLI = Path(__file__).parents[2] / "edge_rt" / "cli"


def declarations() -> dict[str, list[str]]:
    """Return flag -> file and line of its declarations, over all files of the command line."""
    found = defaultdict(list)
    for path in sorted(CLI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Flag":
                for name in ast.literal_eval(node.args[0]):
                    for spelling in name.split("/"):
                        found[spelling].append(f"{path.relative_to(CLI.parents[1])}:{node.lineno}")
    return dict(found)


if __name__ == "__main__":
    for flag, places in sorted(declarations().items()):
        print(f"{flag:24} {', '.join(places)}")
