"""The training step of one rank, and what each of its settings can be."""
