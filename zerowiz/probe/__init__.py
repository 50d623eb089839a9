"""Reads the world: NVML, the host, model folders, scripts, templates."""
