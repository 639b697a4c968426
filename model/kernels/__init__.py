"""Fused forms of `operations.py` for GPUs, in Triton, and the choice among implementations. Importing this imports no Triton."""
