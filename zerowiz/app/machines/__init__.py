"""Finds the machine that the options mean: this one, another one, or all nodes of a hostfile.

Begin with `machine.py`.
"""
