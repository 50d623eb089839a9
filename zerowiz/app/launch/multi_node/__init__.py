"""One zerowiz on each node: they meet, start together and end together."""
