"""Models that draft give the texts that they give without drafts."""

from __future__ import annotations

from tests.helpers.small import FREE_ROWS, GREEDY

PROMPT = [5 + (7 * i) % 11 for i in range(70)]
SAMPLING = (GREEDY, {"temperature": 1.0, "seed": 3})


def check_drafted(model, max_tokens=60):
    """Compare answers, and return how many rows were drafted and how many drafts were accepted."""
    model.speculation.costs = FREE_ROWS
    drafted = accepted = 0
    for sampling in SAMPLING:
        plain = model.generate(PROMPT, max_tokens=max_tokens, spec="off", **sampling)
        for _ in range(2):
            found = model.generate(PROMPT, max_tokens=max_tokens, **sampling)
            assert found.token_ids == plain.token_ids
            drafted += found.spec.rows_drafted
            accepted += found.spec.draft_n_accepted
            model._cache.check()
    return drafted, accepted
