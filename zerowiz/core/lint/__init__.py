"""Check a DeepSpeed config without DeepSpeed: `linter.py` runs the rules of the other modules."""
