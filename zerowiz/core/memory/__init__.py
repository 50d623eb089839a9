"""What one rank holds in each phase, allocation by allocation.

Begin with `estimate.py`; `zero012.py` and `zero3.py` have the formulas of the strategies.
"""
