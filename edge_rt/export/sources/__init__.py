"""Checkpoints as files: headers that are read and not trusted, tokenizers."""
