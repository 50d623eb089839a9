"""Which strategy fits, which one is chosen, and what would help if none fits.

Begin with `flowchart.py`. `evaluate.py` gives the verdicts, `open_settings.py` chooses what is
open.
"""
