"""Text <-> token ids, and chat templates in a sandbox."""
