"""Where the progress of runs is logged for other tools to show."""
