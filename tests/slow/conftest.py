"""Tests that train are collected only where torch is installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") is not None else ["test_training.py", "test_train_model.py"]
