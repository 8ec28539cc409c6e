"""The store of models: its layout, recipes, sources, fetching, and how a model argument is resolved."""
