"""How long an optimizer step takes, and what it sends.

Begin with `step_time.py`; `costs.py` has the measured constants.
"""
