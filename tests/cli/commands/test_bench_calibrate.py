"""``edge-rt bench --calibrate``: what is said of a measurement that cannot be relied on."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from edge_rt.cli.commands.bench import _calibrate
from edge_rt.cli.render.console import Terminal
from edge_rt.runtime.speculation.cost_model import RowCosts


@pytest.mark.parametrize(
    ("is_steady", "is_kept", "said"),
    [(True, True, None), (False, True, "plans do not use this measurement"), (True, False, "could not be saved")],
)
def test_a_measurement_that_is_not_used_is_told(is_steady, is_kept, said):
    measured = RowCosts((1, 8), (64,), ((2.0, 3.0),), is_steady)
    model = SimpleNamespace(calibrate=lambda: measured, measured_costs=SimpleNamespace(is_kept=is_kept))
    terminal = Terminal(out := io.StringIO(), err := io.StringIO(), is_json=True)
    _calibrate(terminal, model, {})
    document = json.loads(out.getvalue())
    assert (document["row_costs"]["steady"], document["is_kept"]) == (is_steady, is_kept)
    warnings = [line for line in err.getvalue().splitlines() if line.startswith("warning: ")]
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]
