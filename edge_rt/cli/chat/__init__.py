"""``edge-rt chat``: the conversation, its slash commands and its line editor."""
