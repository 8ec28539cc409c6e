"""Plan and prompt -> tokens."""
