"""Constants of 4-bit keys, computed from a text."""
