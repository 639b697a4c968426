"""The command line and the runs it starts."""
