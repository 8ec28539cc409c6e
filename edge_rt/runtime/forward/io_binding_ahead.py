"""IO binding of a block that predicts further ahead (``edge_rt.package.ahead``), with a cache of its own."""

from __future__ import annotations

import numpy as np

from edge_rt.ort.binding import Binding
from edge_rt.ort.session import Session
from edge_rt.package.ahead import KV_FORMAT_NAME, AheadInfo, block_decoder
from edge_rt.package.decoder import Decoder
from edge_rt.runtime.forward.io_binding_base import Array, BoundPass, Specs
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.outputs import BoundResults, OutputMemory

LARGEST_PASS = 64
"""Rows of the largest pass: known tokens are computed in pieces."""
_NEVER = np.float32(-1e30)
"""Added to the logits of rows that stand for no token."""


class AheadIOBinding(NativeIOBinding):
    """Inputs and outputs of such a graph.

    Args:
        decoder: the model.
        capacity: positions.
        tiles: shape of a tile of the LM head, ``(units, bytes)``.
        kv_format: of the cache.

    Attributes:
        stream: float32 ``[LARGEST_PASS, hidden_size]``, the states of a pass's rows before their norm.
        stream_norm: float32 ``[hidden_size]``, that norm.
        more_tiles: uint8, tiles of the LM head; the first rows may be those of other tokens.
        token_ids: int32 ``[columns]``, the token of every column of the logits.
    """

    def __init__(
        self,
        decoder: Decoder,
        info: AheadInfo,
        capacity: int,
        tiles: tuple[int, int],
        *,
        kv_format: str = KV_FORMAT_NAME,
    ) -> None:
        super().__init__(block_decoder(decoder, info.layer), capacity, kv_format, largest_pass=LARGEST_PASS)
        columns, more = info.columns(decoder), info.more_rows(decoder)
        self.result_size, self.top_tokens = columns, self.model.top_tokens
        self.outputs = OutputMemory(columns, self.top_tokens, decoder.hidden_size)
        self.outputs.plan(1, 1)
        self.stream = np.zeros((LARGEST_PASS, decoder.hidden_size), np.float32)
        self.stream_norm = np.ones(decoder.hidden_size, np.float32)
        self.more_tiles = np.zeros((more // 16, *tiles), np.uint8)
        self.token_ids = np.arange(columns, dtype=np.int32)
        self._more_bias = np.full(more, _NEVER)
        self._vocabulary = info.vocabulary

    def take_more(self, token_ids: Array) -> None:
        """Let the rows of ``more_tiles`` be those of these tokens; the others are those of none."""
        self.token_ids[self._vocabulary :] = 0
        self.token_ids[self._vocabulary : self._vocabulary + len(token_ids)] = token_ids
        self._more_bias[:] = _NEVER
        self._more_bias[: len(token_ids)] = 0.0

    def bind(self, session: Session, rows: int, num_logits: int, sequences: int = 0) -> BoundPass:
        """Bind buffers for passes of one shape to the graph."""
        bound = super().bind(session, rows, num_logits, sequences)
        bound.binding.bind_input("hidden", self.stream[:rows])
        bound.binding.bind_input("hidden_norm", self.stream_norm)
        if len(self.more_tiles):
            bound.binding.bind_input("more_head", self.more_tiles)
            bound.binding.bind_input("more_bias", self._more_bias)
        return bound

    def bind_results(self, binding: Binding, num_logits: int, *, hidden: bool = True) -> BoundResults:
        """Bind the outputs; ``outputs`` must have room for them."""
        del hidden
        return BoundResults(binding, self.outputs.first(num_logits), "hidden_out")

    def _specs(self) -> Specs:
        width = self.model.hidden_size
        specs: Specs = {
            **super()._specs(),
            "hidden": (("rows", width), "tensor(float)"),
            "hidden_norm": ((width,), "tensor(float)"),
            "hidden_out": (("logit_rows", width), "tensor(float)"),
        }
        if len(self.more_tiles):
            specs["more_head"] = (self.more_tiles.shape, "tensor(uint8)")
            specs["more_bias"] = ((len(self._more_bias),), "tensor(float)")
        return specs
