"""Loads a model, turns prompts into tokens, and generates answers."""
