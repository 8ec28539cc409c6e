"""Records the answers of native packages in a recipe: needed when kernels change the order of a sum.

Their bits are the same on every machine, so answers recorded on one hold for all; those of portable packages are chosen
by hand (``docs/adding-a-model.md``). The prompts are the recipe's::

    python -m tests.golden.record
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import platformdirs

from edge_rt.export import export_model
from edge_rt.store.fetch import fetch_source
from edge_rt.store.layout import open_store
from tests.golden.answers import RECIPE, greedy_answer
from tests.helpers.models import load_package

RECIPES = Path(__file__).parents[2] / "models"
CONTEXT = 512


def spelled(value, indent=0):
    """Return JSON as recipes are written: two spaces, but an answer on one line."""
    if not isinstance(value, dict | list) or not value or "token_ids" in value:
        return json.dumps(value, ensure_ascii=False)
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {spelled(item, indent + 2)}" for key, item in value.items()]
    else:
        parts = [f"{inner}{spelled(item, indent + 2)}" for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(parts) + "\n" + " " * indent + closing


def record(name):
    """Answer the prompts of a recipe's native entry again; return how many answers changed, and of how many."""
    path = RECIPES / f"{name}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    (entry,) = [entry for entry in document["golden"] if entry["op_profile"] == "native"]
    store = open_store(platformdirs.user_cache_path("edge-rt") / "tests")
    gguf = fetch_source(name, store=store).path
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / name
        export_model(gguf, package, profile="native", activations=entry["activations"])
        with load_package(package, ctx=CONTEXT, kv=entry["kv_format"]) as model:
            for answer in entry["answers"]:
                token_ids = greedy_answer(model, answer["prompt"], entry["max_tokens"])
                changed += token_ids != answer["token_ids"]
                answer["token_ids"] = token_ids
    path.write_text(spelled(document) + "\n", encoding="utf-8")
    return changed, len(entry["answers"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("recipe", nargs="?", default=RECIPE)
    changed, count = record(parser.parse_args().recipe)
    print(f"{changed} of {count} answers changed")


if __name__ == "__main__":
    main()
