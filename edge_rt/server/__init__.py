"""The server: apps that speak to OpenAI, Anthropic or Ollama speak to models on this machine."""
