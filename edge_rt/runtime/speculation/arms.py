"""The bandit's arms (ways of drafting), and the speed that each would have reached in the last steps."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from edge_rt.runtime.decode.draft import ROOT, Accepted
from edge_rt.runtime.speculation.tree import Tree


@dataclass(frozen=True)
class Arm:
    """One way of drafting.

    Attributes:
        name: ``"off"``, a source's name, or ``"fusion"``.
        mask: bit i is set if source i guesses.
    """

    name: str
    mask: int


OFF = 0
"""Arm that drafts nothing."""


def arms_of(names: Items[str], computing: Items[str] = ()) -> tuple[Arm, ...]:
    """Return the arms of a bandit: no drafting, sources of texts alone, all of these together, all sources together.

    A source that computes drafts together with the others, or alone if there are no others.

    Args:
        names: of all sources, in order.
        computing: of those that compute their guesses, such as a head.
    """
    masks = {name: 1 << index for index, name in enumerate(names)}
    texts = [name for name in names if name not in computing]
    alone = [Arm(name, masks[name]) for name in texts or names]
    arms = [Arm("off", 0), *alone]
    if len(texts) > 1 and len(texts) < len(names):
        arms.append(Arm("texts", sum(masks[name] for name in texts)))
    if len(names) > 1:
        arms.append(Arm("fusion", sum(masks.values())))
    return tuple(arms)


def texts_arm(arms: Items[Arm], names: Items[str], computing: Items[str]) -> int | None:
    """Return the arm of all sources of texts; None where no source computes, or no other does not."""
    mask = sum(1 << index for index, name in enumerate(names) if name not in computing)
    whole = (1 << len(names)) - 1
    found = (index for index, arm in enumerate(arms) if arm.mask == mask)
    return next(found) if 0 < mask < whole else None


class Ledger:
    """Counts tokens and milliseconds of every arm over some steps.

    A step in which all sources drafted together shows what each alone would have reached: its draft would have been the
    nodes of the tree that it guessed, its accepted tokens the part of the accepted path that it guessed without a gap.
    So arms are compared on the same text, which is far more reliable than comparing them on different texts. A step in
    which one arm drafted alone counts for that arm and for drafting nothing.

    Args:
        arms: as ``arms_of`` returns them.
    """

    def __init__(self, arms: Items[Arm]) -> None:
        self._arms = tuple(arms)
        self.steps = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.steps = 0
        self._tokens = [0] * len(self._arms)
        self._ms = [0.0] * len(self._arms)

    def add(self, played: int, tree: Tree, accepted: Accepted, costs: Items[float], drafting: Items[float]) -> None:
        """Add a step.

        Args:
            played: the arm that drafted.
            tree: what was verified.
            accepted: which nodes were accepted.
            costs: milliseconds of passes over 1, 2, ... rows.
            drafting: milliseconds of drafting, by arm.
        """
        self.steps += 1
        whole = self._arms[played].mask
        masks = [0] * len(tree.values)
        for node, parent in enumerate(tree.draft.parents):
            mask = whole if parent == ROOT else masks[parent]
            guessed = 0
            for source, _ in tree.evidence[node][0]:
                guessed |= 1 << source
            masks[node] = mask & guessed
        for index, arm in enumerate(self._arms):
            if index != OFF and arm.mask & ~whole:
                continue
            nodes = tokens = 0
            for mask in masks:
                nodes += mask & arm.mask != 0
            for node in accepted.path:
                if not masks[node] & arm.mask:
                    break
                tokens += 1
            self._tokens[index] += 1 + tokens
            self._ms[index] += costs[nodes] + drafting[index]

    def speeds(self) -> list[float | None]:
        """Return tokens per millisecond of every arm; None for arms without data."""
        return [tokens / ms if ms else None for tokens, ms in zip(self._tokens, self._ms, strict=True)]
