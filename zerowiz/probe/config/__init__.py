"""Reads configs, their schema and lists of cases."""
