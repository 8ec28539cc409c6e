"""Quantises matrices of floats: scale search, error feedback, and what they are measured with."""
