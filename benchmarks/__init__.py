"""Benchmarks: each runs ours and its peers side by side and prints a ratio with its spread."""
