"""Which trainer a script builds, and which models and sequences it holds."""
