"""Tables and figures of results. Reads results and nothing else."""
