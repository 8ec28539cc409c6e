"""A llama checkpoint in float32 whose attention reads keys and values as a scheme stores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kv_scheme import Scheme, Side
from kv_text import Window
from transformers import AttentionInterface, AutoModelForCausalLM

from edge_rt.export.calibration.key_constants import KeyConstants, key_constants, key_statistics

QUERIES = 256
"""Queries that are attended for together; they see no key behind their last one."""
LOGIT_ROWS = 512
QUERY_STRIDE = 4
"""Every so many queries, one is used where keys are calibrated."""


class Simulation:
    """The checkpoint, every token seeing the cache as decoding would have left it.

    Args:
        gguf: the checkpoint; its weights are dequantised.
        threads: of torch.

    Attributes:
        layers: its number of layers.
        kv_heads, head_dim: as they are in the model.
    """

    def __init__(self, gguf: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        AttentionInterface.register("kv_scheme", self._attend)
        self._model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, attn_implementation="kv_scheme"
        ).eval()
        config = self._model.config
        self.layers = config.num_hidden_layers
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._schemes: Sequence[Scheme] = [Scheme()] * self.layers
        self._watch: Callable[[int, np.ndarray, np.ndarray], None] | None = None

    @torch.inference_mode()
    def states(
        self, ids: Sequence[int], schemes: Sequence[Scheme], first_layer: int = 0, state: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Return the inputs of layers ``first_layer``..., and the last layer's output.

        Args:
            ids: tokens of one window.
            schemes: one per layer.
            first_layer: where to begin.
            state: input of that layer, float32 ``[1, tokens, hidden_size]``; None for layer 0.
        """
        self._schemes = schemes
        model = self._model.model
        positions = torch.arange(len(ids))[None]
        states = [model.embed_tokens(torch.tensor([ids])) if state is None else state]
        angles = model.rotary_emb(states[0], positions)
        for layer in model.layers[first_layer:]:
            states.append(layer(states[-1], attention_mask=None, position_ids=positions, position_embeddings=angles))
        return states

    def key_means(self, windows: Sequence[Window]) -> list[np.ndarray]:
        """Return each layer's mean key, rotary embedding included, float32 ``[kv_heads, 1, head_dim]``."""
        sums = np.zeros((self.layers, self.kv_heads, 1, self.head_dim))

        def add(layer: int, keys: np.ndarray, _: np.ndarray) -> None:
            sums[layer] += keys.sum(axis=1, keepdims=True, dtype=np.float64)

        for window in windows:
            self._watched(window.ids, add)
        return list((sums / sum(len(window.ids) for window in windows)).astype(np.float32))

    def key_constants(self, ids: Sequence[int]) -> list[KeyConstants]:
        """Return each layer's constants for 4-bit keys, as an export computes them from a text."""
        found: dict[int, KeyConstants] = {}
        positions = np.arange(0, len(ids), QUERY_STRIDE)

        def compute(layer: int, keys: np.ndarray, queries: np.ndarray) -> None:
            heads = [
                key_constants(
                    key_statistics(one, group[:, positions].swapaxes(0, 1), positions, scale=one.shape[1] ** -0.5)
                )
                for one, group in zip(keys, queries.reshape(len(keys), -1, *queries.shape[1:]), strict=True)
            ]
            found[layer] = KeyConstants.joined(heads)

        self._watched(ids, compute)
        return [found[layer] for layer in range(self.layers)]

    def _watched(self, ids: Sequence[int], watch: Callable[[int, np.ndarray, np.ndarray], None]) -> None:
        """Call ``watch`` with every layer's number, keys and queries ``[heads, tokens, dim]``, rotated."""
        self._watch = watch
        try:
            self.states(ids, [Scheme()] * self.layers)
        finally:
            self._watch = None

    @torch.inference_mode()
    def logits(self, state: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """Return the logits behind rows of the last layer's output, float32 ``[rows, vocabulary]``."""
        return self._model.lm_head(self._model.model.norm(state[0, torch.tensor(rows)]))

    @torch.inference_mode()
    def judge(self, window: Window, state: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return negative log-likelihoods of the tokens that count, in nats, and the most likely tokens there."""
        counted = window.counted()
        losses, tops = [], []
        for at in range(0, len(counted), LOGIT_ROWS):
            piece = counted[at : at + LOGIT_ROWS]
            logits = self.logits(state, [index - 1 for index in piece])
            targets = torch.tensor([window.ids[index] for index in piece])
            losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none").double().numpy())
            tops.append(logits.argmax(-1).numpy())
        return np.concatenate(losses), np.concatenate(tops)

    def _attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **options: Any
    ) -> tuple[torch.Tensor, None]:
        """Attend; query ``[1, heads, tokens, dim]``, key and value ``[1, kv_heads, tokens, dim]``, keys rotated."""
        scheme = self._schemes[module.layer_idx]
        if self._watch is not None:
            self._watch(module.layer_idx, key[0].numpy(), query[0].numpy())
        keys, late_keys = _views(scheme.keys, key[0], values=False)
        values, late_values = _views(scheme.values, value[0], values=True)
        kv_heads, tokens, dim = keys.shape
        group = query.shape[1] // kv_heads
        queries = query[0].reshape(kv_heads, group, tokens, dim) * options["scaling"]
        pieces = []
        for begin in range(0, tokens, QUERIES):
            end = min(tokens, begin + QUERIES)
            part = queries[:, :, begin:end].reshape(kv_heads, -1, dim)
            scores = (part @ keys[:, :end].transpose(1, 2)).view(kv_heads, group, end - begin, end)
            if late_keys is not None:
                first, late = _late(scheme.keys, begin, end)
                floats = (part @ late_keys[:, first:end].transpose(1, 2)).view(kv_heads, group, end - begin, -1)
                scores[..., first:] = torch.where(late, floats, scores[..., first:])
            scores[..., begin:].masked_fill_(torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1), -torch.inf)
            shares = scores.softmax(-1)
            seen = shares.view(kv_heads, -1, end) @ values[:, :end]
            if late_values is not None:
                first, late = _late(scheme.values, begin, end)
                seen += (shares[..., first:] * late).view(kv_heads, -1, end - first) @ late_values[:, first:end]
            pieces.append(seen.view(kv_heads * group, end - begin, dim))
        return torch.cat(pieces, dim=1).transpose(0, 1)[None].contiguous(), None


def _views(side: Side, x: torch.Tensor, *, values: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what is read where tokens are quantised, and for tails what to read (keys) or to add (values) instead."""
    array = np.ascontiguousarray(x.numpy())
    read = torch.from_numpy(side.read(array, values=values))
    if side.block == 0:
        return read, None
    floats = x.half().float()
    return read, floats - read if values else floats


def _late(side: Side, begin: int, end: int) -> tuple[int, torch.Tensor]:
    """Return the first token that a query of ``begin`` ... ``end`` reads in float, and bool ``[queries, tokens]``."""
    quantised = side.quantised(np.arange(begin, end) + 1)
    first = int(quantised[0])
    return first, torch.from_numpy(np.arange(first, end) >= quantised[:, None])
