"""The prompt whose plain answer drafts are compared with; ``plain_answer`` is a fixture."""

from __future__ import annotations

import pytest

from tests.helpers.small import GREEDY

PROMPT = "The little boat left the harbour at dawn, and the sea was calm. " * 3
SAMPLING = pytest.mark.parametrize("sampling", [GREEDY, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
TOKENS = 40
