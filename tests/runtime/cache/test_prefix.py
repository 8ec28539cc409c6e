from __future__ import annotations

from itertools import takewhile

from hypothesis import given, strategies as st

from edge_rt.runtime.cache.kv_cache import common_prefix

tokens = st.lists(st.integers(0, 1), max_size=40)


@given(tokens, tokens, tokens)
def test_it_counts_what_is_equal(same, first, second):
    first, second = same + first, same + second
    pairs = zip(first, second, strict=False)
    assert common_prefix(first, second) == len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
