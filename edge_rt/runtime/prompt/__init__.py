"""Turns prompts into token ids, within the memory that the plan reserves for text."""
