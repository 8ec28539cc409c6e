"""Training of drafters, from nothing but the model. Only this package may import torch."""
