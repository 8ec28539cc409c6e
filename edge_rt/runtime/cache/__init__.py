"""Rows that a model has computed and keeps: reserved, committed, taken back."""
