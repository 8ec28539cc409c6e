"""Computes the constants of 4-bit keys from a calibration text."""
