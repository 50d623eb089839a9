"""Reads what a launch needs: interpreter, compilers, ports, checkpoints, records."""
