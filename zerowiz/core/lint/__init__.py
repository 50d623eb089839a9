"""The rules of `zerowiz check`: mistakes in a DeepSpeed config, found without DeepSpeed.

Begin with `linter.py`, which lists the checks; the other modules have the rules.
"""
