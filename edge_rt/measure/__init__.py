"""Measurements of speed, speculation, exactness and memory. They use the runtime, which never imports them."""
