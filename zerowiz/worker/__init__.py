"""Programs that run inside the ranks, under `deepspeed`. No other room imports this one.

`rank.py` supervises a rank of a launch, with the standard library alone. The rest is
`zerowiz measure` inside its ranks, and loads torch: begin with `batch.py`.
"""
