"""What a manifest says of a graph that was traced: by what, what its passes need, and whether its rows are exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class PassBytes:
    """Bytes that are alive at one point of a pass over r rows, with t tokens in all: a sum of five terms.

    Attributes:
        fixed: bytes.
        row: bytes for every row, r.
        token: bytes for every token, t: those of the context and of the pass.
        pair: bytes for every pair of a row and a token, r x t.
        logit_row: bytes for every row whose logits are computed.
    """

    fixed: int
    row: int
    token: int
    pair: int
    logit_row: int

    def total(self, rows: int, tokens: int, logit_rows: int) -> int:
        """Return the bytes of a pass over ``rows`` rows that ends at ``tokens`` tokens, with logits of some rows."""
        by_length = self.row * rows + self.token * tokens + self.pair * rows * tokens
        return self.fixed + by_length + self.logit_row * logit_rows


@dataclass(frozen=True)
class TracedInfo:
    """A traced graph.

    Attributes:
        exporter: programs that traced it, with their versions.
        exact_rows: rows of the largest pass whose results were those of single rows, bit by bit, on the machine that
            exported the package; 0: some were not, so nothing is drafted.
        packed_bytes: matrices that ONNX Runtime packs into memory of its own when it opens the graph.
        mapped_bytes: the part of ``weights.bin`` that stays mapped after that.
        nodes: of the graph.
        passes: the points of a pass that may need the most memory; the most of them is what a pass needs.
    """

    exporter: str
    exact_rows: int
    packed_bytes: int
    mapped_bytes: int
    nodes: int
    passes: tuple[PassBytes, ...]

    def pass_bytes(self, rows: int, tokens: int) -> int:
        """Return the bytes of what is computed in a pass over ``rows`` rows that ends at ``tokens`` tokens."""
        # Logits of several rows are wanted of drafts alone.
        wanted = min(rows, max(self.exact_rows, 1))
        return max((point.total(rows, tokens, wanted) for point in self.passes), default=0)

    def faults(self) -> Iterator[tuple[str, int]]:
        """Yield the fields that are below 0: name and value."""
        counts = {name: getattr(self, name) for name in ("exact_rows", "packed_bytes", "mapped_bytes", "nodes")}
        for number, point in enumerate(self.passes):
            # Rows may be subtracted: the context is the tokens without them.
            sums = {
                "fixed": point.fixed,
                "token": point.token,
                "pair": point.pair,
                "row + token": point.row + point.token,
            }
            counts |= {f"passes[{number}].{name}": value for name, value in sums.items()}
            counts[f"passes[{number}].logit_row"] = point.logit_row
        yield from ((name, value) for name, value in counts.items() if value < 0)
