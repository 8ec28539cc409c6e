"""One pass of the graph: what it is bound to, the KV cache, and running it."""
