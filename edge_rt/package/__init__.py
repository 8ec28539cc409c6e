"""THE on-disk format: a folder of data, described byte for byte in ``docs/package-format.md``."""
