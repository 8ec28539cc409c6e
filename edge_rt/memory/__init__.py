"""From a package, a device and a request to a memory plan: pure arithmetic, nothing is loaded."""
