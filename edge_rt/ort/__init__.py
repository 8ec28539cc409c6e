"""ONNX Runtime: sessions, bound arrays, providers, and its errors translated."""
