"""Compares what a package computes with what its checkpoint says."""
