"""Read the settings of a training script from its syntax tree, without running it."""
