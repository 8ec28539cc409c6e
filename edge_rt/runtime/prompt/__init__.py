"""Prompts -> token ids, within the memory that the plan has for text."""
