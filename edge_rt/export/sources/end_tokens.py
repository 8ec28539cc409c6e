"""Tokens that end an answer, known by their texts: files name one or two of them, but models emit all of them."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

END_TEXTS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|eot|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<turn|>",
        "<eos>",
        "</s>",
        "<|tool_response>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|END_OF_TURN_TOKEN|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[e~[",
    }
)
"""Texts of tokens that end an answer, or a call of a tool in it."""

TURN_TEXTS: Final = frozenset(
    {
        "<bos>",
        "<|begin_of_text|>",
        "<|im_start|>",
        "<start_of_turn>",
        "<|turn>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
    }
)
"""Texts of tokens that begin a turn. Files type them as ordinary text now and then."""


def end_texts(tokens: Container[str]) -> frozenset[str]:
    """Return the texts that end an answer of a model with these tokens.

    In the formats of gpt-oss and Solar ``<|end|>`` only ends one of several messages of an answer. A vocabulary with
    ``<|tool_response>`` has ``</s>`` for the markup of HTML.
    """
    result = set(END_TEXTS)
    is_harmony = "<|return|>" in tokens and "<|call|>" in tokens
    if is_harmony or ("<|flush|>" in tokens and ("<|call|>" in tokens or "<|calls|>" in tokens)):
        result.discard("<|end|>")
    if "<|tool_response>" in tokens:
        result.discard("</s>")
    return frozenset(result)
