"""Reads the machine: NVML, host, network, scheduler, other nodes."""
