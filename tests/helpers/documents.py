"""Documents of JSON with one value changed."""

from __future__ import annotations

import copy


def replaced(document, *path_and_value):
    """Return a copy of a document whose value at a path, keys from the outermost on, is another."""
    *path, value = path_and_value
    found = at = copy.deepcopy(document)
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return found
