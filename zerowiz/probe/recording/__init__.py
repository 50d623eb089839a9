"""Records what the probes read, and plays it back."""
