"""The decoder that a description describes: its tensors, its graph, and plain numpy passes over it."""
