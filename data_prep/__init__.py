"""From raw text to batches. Imports nothing else of remask."""
