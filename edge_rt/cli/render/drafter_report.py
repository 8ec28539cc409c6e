"""Trained drafters as rows of a table."""

from __future__ import annotations

from typing import Any

from edge_rt.byte_size import counted, human_bytes


def drafter_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of a drafter as rows of two columns."""
    rows = [("path", facts["path"])]
    if "acceptance" in facts:
        head, training, measured = facts["head"], facts["training"], facts["acceptance"]
        formats = ", ".join(f"{name} {form}" for name, form in head["formats"].items())
        shares = ", ".join(f"{share:.2f}" for share in measured["positions"])
        blocks = counted(head["blocks"], "block")
        rows += [
            (
                "kind",
                f"{facts['drafter_kind']}, {human_bytes(facts['size_bytes'])}, {facts['license'] or 'no licence'}",
            ),
            ("trained for", f"{facts['target']['name']}, checkpoint {facts['target']['source_sha256'][:12]}"),
            (
                "head",
                f"{blocks} of {head['intermediate_size']}, {head['vocabulary_size']} tokens",
            ),
            ("matrices", formats),
            *_acceptance_rows(facts["exits"], measured, shares),
            ("training", f"{training['recipe']}, seed {training['seed']}, {training['steps']} steps"),
            ("data", f"{training['tokens']} tokens, {training['epochs']:g} epochs, {training['hours']:g} h"),
            ("texts", training["data"]),
        ]
    if "origin" in facts:
        rows.append(("found", f"{_PLACES[facts['origin']]}; {facts['reason'] or 'fits'}"))
    return rows


def _acceptance_rows(exits: list[dict[str, Any]], measured: dict[str, Any], shares: str) -> list[tuple[str, str]]:
    if not exits:
        return [
            ("acceptance", f"{shares} by position on {measured['tokens']} tokens"),
            ("first token", f"{measured['top2']:.2f} among 2, {measured['top4']:.2f} among 4"),
        ]
    return [
        (
            f"exit {one['layer']}",
            f"{one['top1']:.2f} of {measured['tokens']} tokens, {one['top2']:.2f} among 2, {one['top4']:.2f} among 4",
        )
        for one in exits
    ]


_PLACES = {"package": "in the package's folder", "installed": "installed with edge-rt"}
