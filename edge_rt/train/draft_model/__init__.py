"""Training of a small model that drafts for a larger one: an ordinary package with the larger one's tokenizer."""
