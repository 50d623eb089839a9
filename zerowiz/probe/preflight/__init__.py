"""Reads the facts of the preflight checks: interpreter, libraries, compilers, ports.

Begin with `read_facts.py`.
"""
