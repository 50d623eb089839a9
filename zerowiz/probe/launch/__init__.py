"""Reads what a launch needs: interpreter, compilers, ports, records."""
