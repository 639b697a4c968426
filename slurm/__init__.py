"""Batch scripts for SLURM: data, each runnable as it stands with its variables at the top."""
