"""Sizes of packages that edge-rt cannot make: guessed from the headers of foreign checkpoints."""
