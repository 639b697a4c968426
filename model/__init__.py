"""Encoders, heads and losses. Imports nothing else of remask."""
