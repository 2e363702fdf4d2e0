"""What messages cost on a measured channel, and what a training step over several hosts takes by it."""
