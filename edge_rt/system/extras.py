"""The command that installs what an extra of edge-rt needs.

It names the packages themselves: edge-rt may have come from a checkout or a wheel, and no index need know it.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Sequence
from typing import Final

_OF_EXTRA: Final = re.compile(r"(?P<requirement>[^;]+);.*\bextra\s*==\s*[\"'](?P<extra>[\w-]+)[\"'].*")


def install_command(*extras: str, upgrade: bool = False, requirements: Sequence[str] | None = None) -> str:
    """Return the command that installs the packages of extras, such as ``pip install 'matplotlib>=3.8'``.

    Args:
        requirements: of edge-rt, as its metadata states them; None: those of the one that runs.
    """
    if requirements is None:
        requirements = _own_requirements()
    matches = filter(None, map(_OF_EXTRA.fullmatch, requirements))
    names = [match["requirement"].strip() for match in matches if match["extra"] in extras]
    # Of files that were never installed nothing is known: they are a checkout.
    wanted = names or [f".[{','.join(extras)}]"]
    return shlex.join(["pip", "install", *(["--upgrade"] if upgrade else []), *wanted])


def _own_requirements() -> Sequence[str]:
    try:
        return importlib.metadata.requires("edge-rt") or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
