"""The common prefix of two token sequences."""

from __future__ import annotations

from collections.abc import Sequence as Items


def common_prefix(first: Items[int], second: Items[int]) -> int:
    """Return the number of tokens that two sequences of the same type have in common at their beginning: O(n)."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    # Comparing slices is as fast as memcmp; comparing items one by one is not.
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
