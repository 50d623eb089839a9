"""Thinks: decides, predicts, renders. Standard library only, no I/O."""
