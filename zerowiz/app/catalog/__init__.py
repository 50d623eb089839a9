"""How long a run takes, what it costs, and which machines it fits."""
