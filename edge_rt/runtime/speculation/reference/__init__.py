"""Draft sources in Python, equal to those of the native library."""
