"""How long a step takes, and what it sends."""
