"""Reads models: from folders, caches and the hub, or by a trace."""
