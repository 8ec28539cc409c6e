"""The command line ``edge-rt``: parse, call, print."""
