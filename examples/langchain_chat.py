"""LangChain against ``edge-rt serve``: an answer piece by piece, and one that fits a schema.

::

    pip install langchain-openai
    edge-rt serve
    python examples/langchain_chat.py "What is a haiku?"
"""

from __future__ import annotations

import sys

from langchain_openai import ChatOpenAI

SCHEMA = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(question: str, url: str = "http://127.0.0.1:8080/v1") -> None:
    """Ask the server."""
    # The server needs no key; the client does.
    model = ChatOpenAI(base_url=url, api_key="none", model="default", temperature=0, max_tokens=60)
    for piece in model.stream(question):
        print(piece.content, end="", flush=True)
    print()
    print(model.with_structured_output(SCHEMA).invoke("Make up a person."))


if __name__ == "__main__":
    main(*sys.argv[1:])
