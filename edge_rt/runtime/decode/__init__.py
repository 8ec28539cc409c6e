"""The decode loop (draft, verify, accept, commit), sampling, and acceptance rules."""
