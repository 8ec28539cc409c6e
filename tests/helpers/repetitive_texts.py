"""Texts that repeat themselves because they should: tables, refrains, rows of data. None of them is a circle."""

from __future__ import annotations

NUMBERS = ["Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
COLOURS = [
    "red",
    "green",
    "blue",
    "black",
    "white",
    "pink",
    "brown",
    "gray",
    "gold",
    "navy",
    "teal",
    "plum",
    "tan",
    "lime",
    "aqua",
]
VERSES = (
    "The morning came with a silver bell,\nThe boats went out on the foam,\n",
    "My father told what the old men tell\nOf sailors who never came home,\n",
    "The nets were full and the sails were torn,\nThe gulls cried over the bay,\n",
    "And so I waited from night till morn\nFor the wind to turn your way,\n",
)
CHORUS = (
    "Oh, the river runs, the river runs,\nThe river runs down to the sea,\n"
    "And under the light of a thousand suns\nIt carries you back to me.\n\n"
)
GREEN = (
    "{n} green bottles hanging on the wall,\n{n} green bottles hanging on the wall,\n"
    "And if one green bottle should accidentally fall,\nThere'll be {m} green bottles hanging on the wall.\n\n"
)
BEER = (
    "{n} bottles of beer on the wall, {n} bottles of beer.\n"
    "Take one down and pass it around, {m} bottles of beer on the wall.\n\n"
)
CARD = (
    ".card-{n} {{\n    color: {colour};\n    padding: 10px;\n    margin: 5px;\n    border: 1px solid black;\n"
    "    border-radius: 4px;\n    font-size: 14px;\n}}\n\n"
)
CASE = (
    "def test_case_{n}():\n    result = compute({n})\n    assert result is not None\n"
    "    assert result == expected[{n}]\n\n\n"
)
HEX = "{n:08x}  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n"

TEXTS = {
    "multiplication table": "".join(
        f"| {i} |" + "|".join(f" {i * j} " for j in range(1, 11)) + "|\n" for i in range(11)
    ),
    "table of seven": "".join(f"7 x {i} = {7 * i}\n" for i in range(1, 101)),
    "chess board": ("|" + "   |" * 8 + "\n") * 8,
    "empty column": "".join(f"| {hour:02}:00 | |\n" for hour in range(24)),
    "blank form": "| Name | Date | Signature |\n|---|---|---|\n" + "| | | |\n" * 30,
    "matrix of zeros": "[\n" + ",\n".join("  [" + ", ".join(["0"] * 12) + "]" for _ in range(12)) + "\n]",
    "array of zeros": "static const int table[128] = {\n" + ("    " + "0, " * 16 + "\n") * 8 + "};\n",
    "a word, 100 times": "hello " * 100,
    "a word, 100 lines": "hello\n" * 100,
    "stars": ("*" * 40 + "\n") * 12,
    "square": "*" * 20 + "\n" + ("*" + " " * 18 + "*\n") * 10 + "*" * 20,
    "spaced stars": ("* " * 20 + "\n") * 6,
    "cells": "<table>\n" + ("  <tr>\n" + "    <td>cell</td>\n" * 4 + "  </tr>\n") * 5 + "</table>",
    "empty cells": "<table>\n" + ("  <tr>\n" + "    <td></td>\n" * 6 + "  </tr>\n") * 8 + "</table>",
    "song": "".join(verse + CHORUS for verse in VERSES),
    "song, chorus twice": "".join(verse + CHORUS * 2 for verse in VERSES),
    "ten bottles": "".join(GREEN.format(n=NUMBERS[n], m=NUMBERS[n - 1].lower()) for n in range(10, 0, -1)),
    "99 bottles": "".join(BEER.format(n=n, m=n - 1) for n in range(99, 0, -1)),
    "counting": "".join(f"{i}\n" for i in range(1, 301)),
    "counting, commas": ", ".join(map(str, range(1, 301))),
    "counting to 1,000": "".join(f"{i}\n" for i in range(1, 1001)),
    "counting to 1,000, commas": ", ".join(map(str, range(1, 1001))),
    "counting to 1,000, points": "".join(f"{i}.\n" for i in range(1, 1001)),
    "counting to 1,000, dashes": "".join(f"- {i}\n" for i in range(1, 1001)),
    "random numbers": ", ".join(str(7919 * i % 1009) for i in range(1000)),
    "decimals": "".join(f"{i / 10}\n" for i in range(1001)),
    "csv of numbers": "".join(f"{i},{i * i},{i * i * i}\n" for i in range(1, 501)),
    "days": "".join(f"{i}. Day {i}\n" for i in range(1, 366)),
    "dates": "".join(f"2024-{i // 31 + 1:02}-{i % 31 + 1:02}\n" for i in range(372)),
    "times table": "".join(f"{i} x {j} = {i * j}\n" for i in range(1, 21) for j in range(1, 21)),
    "squares": "".join(f"| {i} | {i * i} |\n" for i in range(1, 501)),
    "years": "".join(f"In {year}, nothing.\n" for year in range(1500, 2000)),
    "statements": "".join(f'print("{day}")\n' for day in DAYS * 3),
    "style sheet": "".join(CARD.format(n=n, colour=colour) for n, colour in enumerate(COLOURS * 2)),
    "csv": "".join(f"{i},Name{i},City{i}\n" for i in range(1, 101)),
    "json": ",\n".join(f'  {{"id": {i}, "name": "Person {i}", "active": true, "score": 0}}' for i in range(60)),
    "sql": "".join(f"INSERT INTO fruit (id, name, price) VALUES ({i}, 'fruit {i}', 1.00);\n" for i in range(60)),
    "test cases": "".join(CASE.format(n=n) for n in range(1, 31)),
    "tree": "".join(" " * (20 - i) + "*" * (2 * i + 1) + "\n" for i in range(20)),
    "nonsense": ("La la la la la, la la la la la,\n" * 4 + "Sing it again with me,\n\n") * 6,
    "hex dump": "".join(HEX.format(n=16 * n) for n in range(32)),
    "dna": "ACGT" * 60,
    "check list": "- [ ] \n" * 40,
    "weeks": "".join(f"| Week {week} | Rest | Run | Rest | Run | Rest | Run | Rest |\n" for week in range(1, 27)),
    "work days": "| work | work | work | work | work | free | free |\n" * 20,
}
