"""The commands of ``edge-rt``, one file each."""
