"""LlamaIndex against ``edge-rt serve``.

::

    pip install llama-index-llms-openai-like
    edge-rt serve
    python examples/llamaindex_chat.py "What is a haiku?"
"""

from __future__ import annotations

import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def main(question: str, url: str = "http://127.0.0.1:8080/v1", context: str = "8192") -> None:
    """Ask the server; the context is the one that it says when it has loaded the model."""
    model = OpenAILike(
        api_base=url,
        api_key="none",  # the server needs none
        model="default",
        is_chat_model=True,
        context_window=int(context),
        temperature=0,
        max_tokens=60,
    )
    for piece in model.stream_chat([ChatMessage(role="user", content=question)]):
        print(piece.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
