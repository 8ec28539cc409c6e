"""Compares the results of a package with a reference computed from its checkpoint."""
