"""What every network promises."""
