"""How a launched job ended, and what it took beside its plan."""
