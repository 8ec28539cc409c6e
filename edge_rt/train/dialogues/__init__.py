"""Dialogues that a model writes itself: user turns behind its own template's marker, and its answers to them."""
