"""From what a load is asked for to the parts of a model: the plan, its share of a budget, the loading."""
