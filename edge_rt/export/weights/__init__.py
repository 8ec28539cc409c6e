"""Writes tensors to ``weights.bin``, in the layouts that the operators read."""
