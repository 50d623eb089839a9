"""Thinks: decides, predicts, renders. The standard library and msgspec only, no I/O."""
