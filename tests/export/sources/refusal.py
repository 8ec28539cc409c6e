"""The error that a file is refused with."""

from __future__ import annotations

import pytest

from edge_rt.errors import EdgeRTError
from edge_rt.export.sources.gguf_header import read_header


def refusal(path, error=EdgeRTError):
    with pytest.raises(error) as caught:
        read_header(path)
    assert caught.type is error or error is EdgeRTError
    assert caught.value.what
    assert caught.value.numbers
    assert caught.value.action
    return str(caught.value)
