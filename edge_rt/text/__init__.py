"""The tokenizer, and chat templates in a sandbox."""
