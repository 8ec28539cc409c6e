"""edge-rt: language models on the device in front of you."""
