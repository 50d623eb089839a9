"""Records every answer that the probes got, and replays it."""
