from __future__ import annotations

import pytest

from edge_rt.store.layout import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")
