"""The use cases: each joins the rooms below for one thing that you want to do.

Begin with `plan.py`, the shortest of them. `decide.py` is the decision that most of them share.
"""
