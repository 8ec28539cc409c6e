"""The flags of ``edge-rt``: declared once in ``flags``, put together in ``groups``, given to commands by ``spread``."""
