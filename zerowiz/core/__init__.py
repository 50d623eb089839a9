"""Thinks: decides, predicts and renders. It has the standard library and msgspec, and no I/O.

Begin with `strategies.py`, which lists what there is to choose, and `decision/flowchart.py`.
"""
