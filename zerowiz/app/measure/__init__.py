"""Measuring: real steps on this machine, beside their prediction."""
