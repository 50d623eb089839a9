"""Reads DeepSpeed configs, their schema, and lists of cases."""
