"""Tensors -> ``weights.bin``, in the layouts that the operators read."""
