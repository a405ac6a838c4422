"""What methods are made of: memory, views, losses and the optimiser."""
