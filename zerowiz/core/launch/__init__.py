"""How a job is started: its files, its command, its environment and its nodes.

Begin with `plan.py`, which has `LaunchPlan`.
"""
