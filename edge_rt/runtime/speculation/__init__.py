"""Speculation: chooses drafters and draft sizes from measured costs and learned acceptance; draft trees."""
