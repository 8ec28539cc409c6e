"""The only file that imports onnx_ir; the modules that use it take it from here.

It imports sympy, which computes dimensions like ``2 * tokens + 1``. Ours are numbers and names: without sympy an export
takes a tenth of a second and some 30 MiB less.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

__all__ = ["ir"]

_SELDOM_USED: Final = ("sympy", "onnx_ir._symbolic_shapes")
"""What onnx_ir imports to compute dimensions; a version that has no such module imports nothing less."""


class _WhenUsed(ModuleType):
    """Stands for a module until something of it is used."""

    def __getattr__(self, name: str) -> Any:
        _step_aside(self)
        return getattr(importlib.import_module(self.__name__), name)


def _step_aside(module: _WhenUsed) -> None:
    """Let whoever imports the module from now on get the real one."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


_standing_in = [_WhenUsed(name) for name in _SELDOM_USED if name not in sys.modules]
sys.modules.update({module.__name__: module for module in _standing_in})
try:
    import onnx_ir as ir
finally:
    for _module in _standing_in:
        _step_aside(_module)
