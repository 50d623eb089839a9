"""Reads NVML, the host, model folders, configs and scripts; changes none of them."""
