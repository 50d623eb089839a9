"""Starts a job: reads what is there, decides, checks, writes, starts, and perhaps starts again.

Begin with `launch.py`. `start.py` plans one start, watches it, and starts again.
"""
