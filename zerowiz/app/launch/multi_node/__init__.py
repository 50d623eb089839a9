"""One zerowiz on each node: they join a rendezvous, start together and end together."""
