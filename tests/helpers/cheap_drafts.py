"""Stored costs of passes, by which drafts pay: measuring takes long where a device is emulated."""

from __future__ import annotations

from edge_rt.runtime.speculation.cost_model import RowCosts

FREE_ROWS = RowCosts((1, 64), (0,), ((1.0, 1.001),))


class CheapDrafts:
    """Stored costs by which every draft pays; measuring takes long on an emulated device.

    Attributes:
        keys: those of the costs that were asked for.
    """

    def __init__(self):
        self.keys = []

    def load(self, key):
        self.keys.append(key)
        if "part" in key:
            return RowCosts((1, 8), (0,), ((0.05, 0.06) if key["part"] == "draft" else (0.5, 0.51),))
        return RowCosts((1, 16), (0,), ((0.1, 0.11),)) if "graph" in key else FREE_ROWS

    def save(self, key, costs):
        return True

    def find(self, facts):
        return []
