"""The training loop around Lightning: runs, checkpoints, schedule, evaluation."""
