"""The parts of a training run: how it is spread over ranks, what it remembers, and what it tells."""
