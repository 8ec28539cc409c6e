"""The flags of ``edge-rt``: declared in ``flags``, grouped in ``groups``, added to commands by ``spread``."""
