"""Resources of the machine, and what a process uses of them."""
