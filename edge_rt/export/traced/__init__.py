"""Packages of architectures without a description: a graph that transformers traces, and what is made of it."""
