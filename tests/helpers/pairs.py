"""Fewer cases than all combinations of parameters, and every two values together at least once."""

from __future__ import annotations

from itertools import combinations, product

import pytest


def with_slow(cases, chosen):
    """Return all cases as parameters, those that are not ``chosen`` as slow ones: ``-m ""`` runs them all."""
    chosen = list(chosen)
    return [
        pytest.param(*case, marks=() if case in chosen else pytest.mark.slow)
        for case in (case if isinstance(case, tuple) else (case,) for case in cases)
    ]


def all_pairs(*axes):
    """Return tuples of one value of each axis in which every two values of two axes meet; always the same ones.

    Each tuple is the first that has the most pairs not yet met (Cohen et al., "The AETG System", 1997, but greedy over
    all combinations, of which there are few). For behaviour that depends on one parameter or on two at a time.
    """
    axes = [list(axis) for axis in axes]
    rows = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {row: set(combinations(enumerate(row), 2)) for row in rows}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        row = max(rows, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[row]
        chosen.append(row)
    return [tuple(axis[at] for axis, at in zip(axes, row, strict=True)) for row in sorted(chosen)]
