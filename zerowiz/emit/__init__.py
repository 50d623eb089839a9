"""Changes the world: writes files, starts processes, and ends them.

Begin with `files.py` for what is written, and `job.py` for a job that is supervised.
"""
