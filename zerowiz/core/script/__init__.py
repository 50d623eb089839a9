"""A training script: the settings that it has, and how a config and new values reach it.

Begin with `facts.py`, then `settings.py`. `probe/script/` reads the script.
"""
