"""Reads a training script from its syntax tree, without running it.

Begin with `read_script.py`; each other module reads one kind of fact.
"""
