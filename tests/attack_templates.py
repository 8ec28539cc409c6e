"""Attacks chat templates with messages made of their control tokens: ``python -m tests.attack_templates FOLDER``.

Every ``*.jinja`` file of the folder renders conversations made at random. A second rendering with other characters
tells which characters come from messages (:mod:`tests.helpers.template_oracle`): none may count as the template's own.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from edge_rt.errors import InvalidTemplate
from edge_rt.text.template import ChatTemplate
from tests.helpers.template_oracle import attack, control_texts, fragments, leaks


def main() -> None:
    """Attack the files of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-n", "--number", type=int, default=100_000, help="renderings in all")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    templates = []
    for file in sorted(chosen.folder.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        try:
            template = ChatTemplate(source, special_tokens=control_texts(source), bos_token="<bos>", eos_token="<eos>")
        except InvalidTemplate as error:
            print(f"{file.name}: {error}")
            continue
        templates.append((file.name, template, fragments(source)))
    compared = leaked = 0
    for number in range(chosen.number // 2):
        name, template, parts = templates[number % len(templates)]
        found = leaks(template, attack(rng, parts, rng.randrange(3)))
        compared += found is not None
        if found:
            leaked += 1
            print(f"{name}: {found[:3]}")
    print(f"{2 * (chosen.number // 2)} renderings in pairs, {compared} pairs compared, {leaked} with a leak")
    raise SystemExit(leaked > 0)


if __name__ == "__main__":
    main()
