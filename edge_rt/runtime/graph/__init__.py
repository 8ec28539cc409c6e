"""One pass of the graph: IO bindings, the KV cache, outputs, and the runner."""
