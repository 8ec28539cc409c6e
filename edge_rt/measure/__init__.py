"""What only measures: speed, speculation, exactness, memory. Above the runtime, which never imports it."""
