"""Models: their architecture and their tensors, from a config.json, a size or a name.

Begin with `types.py`, then `families.py`, the table of the model families.
"""
