"""Options for the small random model, whose answers are noise."""

from __future__ import annotations

from edge_rt.runtime.speculation.cost_model import RowCosts
from tests.helpers.gguf_factory import BOS_ID, EOS_ID, UNKNOWN_ID

NO_SPECIALS = {BOS_ID: -1e4, EOS_ID: -1e4, UNKNOWN_ID: -1e4}
GREEDY = {"temperature": 0.0, "logit_bias": NO_SPECIALS}
"""Greedy, and only ``max_tokens`` ends the answer."""
FREE_ROWS = RowCosts((1, 64), (0,), ((1e4, 1.001e4),))
"""Costs of passes with which every draft pays: beside ten seconds none takes long, on any machine."""
