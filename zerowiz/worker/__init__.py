"""Programs that run inside the ranks under `deepspeed`. No other room imports this one.

`rank.py` supervises one rank of a launch; it needs the standard library alone. The rest is
`zerowiz measure` inside its ranks, and loads torch.
"""
