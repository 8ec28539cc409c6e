"""GPUs: their names, the driver, kernels, and our own provider."""
