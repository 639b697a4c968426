"""Jobs on a SLURM cluster: their scripts, the commands that handle them, and what a run's folder tells of them."""
