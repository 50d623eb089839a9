"""Programs that run inside the ranks, under `deepspeed`. No other room imports this one.

Begin with `rank.py`, which supervises a rank with the standard library alone. `prepared_script.py`
starts a person's script, `measured_script.py` also counts its steps and memory.
"""
