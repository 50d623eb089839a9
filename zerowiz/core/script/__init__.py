"""A training script: the settings that it has, and how a config reaches it."""
