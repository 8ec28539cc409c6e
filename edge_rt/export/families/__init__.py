"""Model families: the dimensions and tensors of each, and its graph."""
