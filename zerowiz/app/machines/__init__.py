"""The machine that the options mean."""
