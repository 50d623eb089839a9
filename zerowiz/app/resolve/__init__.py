"""Makes one job of all that is said: options, script, the words after it, a config, the model.

Begin with `resolved_job.py`.
"""
