"""Building blocks of a graph, in both op profiles."""
