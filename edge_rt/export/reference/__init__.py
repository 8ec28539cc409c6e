"""The model computed in floats by numpy, with gradients: what quantising is measured and calibrated against."""
