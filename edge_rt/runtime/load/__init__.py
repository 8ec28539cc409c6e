"""Loading a model: the options, the memory plan, its share of a budget, and the parts of the loaded model."""
