"""Checkpoint files: untrusted headers, tokenizers, and recommended sampling values."""
