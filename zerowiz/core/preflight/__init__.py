"""The checks of `launch` and `doctor`: what would make a job fail on this machine.

Begin with `examine.py`, which lists them. `facts.py` is what they know of the machine.
"""
