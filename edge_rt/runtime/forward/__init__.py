"""One pass of the graph: its inputs and results bound to memory, and the runner."""
