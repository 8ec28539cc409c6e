"""Memory that ONNX Runtime may take for the passes of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PassMemory:
    """Memory for the intermediate values of passes: tensors between operators, and work space of operators.

    It is one block from the beginning, so that it cannot become fragmented; pages that are not written take no memory.
    Weights that ONNX Runtime packs count towards the limit, if there is one.

    Attributes:
        is_limit: whether a pass that needs more fails; otherwise the arena grows.
    """

    bytes: int
    is_limit: bool

    @property
    def arena(self) -> dict[str, int]:
        """ONNX Runtime's configuration of such an arena."""
        size = max(-(-self.bytes // _PAGE) * _PAGE, _PAGE)
        return {
            "max_mem": size if self.is_limit else 0,
            # The only strategy that uses the given size of the first block, and the one that grows.
            "arena_extend_strategy": 0,
            "initial_chunk_size_bytes": size,
            # A free block is always split, so that its rest can hold another tensor.
            "max_dead_bytes_per_chunk": 1,
        }


_PAGE: Final = 4096
