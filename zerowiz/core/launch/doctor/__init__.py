"""The preflight checks: what would end a launch, from facts that the probes gathered."""
