"""The memory plan, computed from a package, a device and a request; nothing is loaded."""
