"""Tests that train are collected only where torch is installed, those of adapters where PEFT is."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") is not None else ["test_training.py", "test_train_model.py"]
collect_ignore += [] if find_spec("peft") is not None else ["test_adapters.py"]
