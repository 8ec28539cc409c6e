"""Draft, verify, accept, commit: the loop and what it chooses with."""
