"""Reads a machine: its GPUs from NVML, its host, network and scheduler, and other nodes.

Begin with `read_machine.py`.
"""
