"""Model families: the numbers and tensors each has, and its graph."""
