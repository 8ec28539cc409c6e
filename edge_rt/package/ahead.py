"""A block that predicts one token further than the model does (multi-token prediction), and so can draft for it.

With e(t) the embedding of token t, h(i) the state behind the model's final norm at position i, and norms as of the
model (DeepSeek-AI, arXiv 2412.19437, section 2.2)::

    x = fc [token_norm(e(t(i+1))) | state_norm(h(i))];  y = block(x);  logits of t(i+2) = head(output_norm(y))

A second step takes ``output_norm(y)`` in the place of h(i). The block attends to its own keys and values, which lie at
the positions of the states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Layer, layer_problems

KV_FORMAT_NAME: Final = "f16"
"""Format of the block's cache."""
MORE_ROWS: Final = 1024
"""Most tokens of a prompt that can be guessed besides those of the vocabulary."""
SHORTLIST: Final = 32768
"""Tokens that can always be guessed: those of the smallest ids, which tokenizers made by merging give to frequent
ones."""
STREAM: Final = "stream"
"""Value of the model's own graph: the stream behind the last layer, of all rows."""
TILE_ROWS: Final = 16


@dataclass(frozen=True)
class AheadInfo:
    """What a manifest says of the block.

    Attributes:
        graph: file of its graph, over the same weights.
        layer: the block, whose heads need not be those of the model's layers.
        vocabulary: tokens with smaller ids can be guessed, and some of the prompt's.
    """

    graph: str
    layer: Layer
    vocabulary: int

    def faults(self, decoder: Decoder) -> Iterator[tuple[str, object, str]]:
        """Yield the fields that are out of range: name, value, and what is wanted, in words."""
        least = min(TILE_ROWS, decoder.vocab_size)
        if not least <= self.vocabulary <= decoder.vocab_size:
            yield "vocabulary", self.vocabulary, f"{least} to {decoder.vocab_size}"
        elif self.vocabulary % TILE_ROWS and self.vocabulary != decoder.vocab_size:
            yield "vocabulary", self.vocabulary, f"a multiple of {TILE_ROWS}, or {decoder.vocab_size}"
        problem = next((text for text, is_wrong in layer_problems(self.layer) if is_wrong), None)
        if problem is None and (self.layer.attention is None or self.layer.attention.window):
            problem = "it has no attention to all positions"
        if problem is None:
            try:
                block_decoder(decoder, self.layer).check()
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            yield "layer", problem, "a layer of the model"

    def more_rows(self, decoder: Decoder) -> int:
        """Return how many tokens of a prompt can be guessed besides."""
        return MORE_ROWS if self.vocabulary < decoder.vocab_size else 0

    def columns(self, decoder: Decoder) -> int:
        """Return the logits of a row."""
        return self.vocabulary + self.more_rows(decoder)


def block_decoder(decoder: Decoder, layer: Layer) -> Decoder:
    """Return the description of the block alone, as if it were a model of one layer."""
    return replace(decoder, kinds=(layer,), pattern=(0,))


def with_block(decoder: Decoder, layer: Layer) -> Decoder:
    """Return the description of the model with the block behind its layers."""
    kinds = decoder.kinds if layer in decoder.kinds else (*decoder.kinds, layer)
    return replace(decoder, kinds=kinds, pattern=(*decoder.pattern, kinds.index(layer)))


def shortlist(vocab_size: int, *, is_nested: bool) -> int:
    """Return how many tokens can always be guessed; rows of nested codes are not taken out of their matrix."""
    return vocab_size if is_nested else min(vocab_size, SHORTLIST)
