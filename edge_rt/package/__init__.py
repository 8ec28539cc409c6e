"""The on-disk format of a package: a folder, described byte for byte in ``docs/package-format.md``."""
