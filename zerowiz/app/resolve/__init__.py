"""One request out of options, script, config and model."""
