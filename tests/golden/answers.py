"""Recorded answers: which entry of a recipe is meant, and how an answer is made."""

from __future__ import annotations

from edge_rt.store.recipes import load_recipes

RECIPE = "smollm2-135m-instruct"


def recorded(op_profile):
    """Return the recipe's entry for an op profile."""
    (entry,) = [entry for entry in load_recipes()[RECIPE].golden if entry["op_profile"] == op_profile]
    return entry


def greedy_answer(model, prompt, max_tokens):
    """Return the token ids of a greedy answer to one message, from an empty cache."""
    model.reset()
    messages = [{"role": "user", "content": prompt}]
    return list(model.generate(messages, temperature=0.0, max_tokens=max_tokens).token_ids)
