"""A chat inside an asyncio program: answers stream while other work goes on, and a time limit stops one.

Run: python examples/async_chat.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys

import edge_rt


async def tick(seconds: float) -> None:
    """Stand for the rest of the program: shows that the event loop is never blocked."""
    while True:
        await asyncio.sleep(seconds)
        print("·", end="", flush=True, file=sys.stderr)


async def ask(chat: edge_rt.Chat, question: str, limit: float) -> None:
    """Stream an answer; stop it when the time is up. What was said by then stays in the conversation."""
    print(f"\n> {question}")
    stream = chat.astream(question, temperature=0.0, max_tokens=120)
    try:
        async with asyncio.timeout(limit):
            async for event in stream:
                print(event.text, end="", flush=True)
    except TimeoutError:
        print(" … (out of time)", end="")


async def main() -> None:
    """Ask two questions, the second referring to the first."""
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    try:
        model = await asyncio.to_thread(edge_rt.load, name)
    except edge_rt.ModelNotFound:
        await asyncio.to_thread(edge_rt.pull, name)
        model = await asyncio.to_thread(edge_rt.load, name)
    with model:
        chat = model.chat(system="You answer briefly.")
        background = asyncio.create_task(tick(0.25))
        await ask(chat, "Name three fruits.", limit=30)
        await ask(chat, "Which of them is yellow?", limit=0.4)
        background.cancel()
        print(f"\n{chat.token_count()} tokens in the conversation; messages: {[m['role'] for m in chat.messages]}")


if __name__ == "__main__":
    asyncio.run(main())
