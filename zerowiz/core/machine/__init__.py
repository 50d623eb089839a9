"""The machine of a job: its GPUs, the links between them, its host and its network.

Begin with `types.py`. The name of a machine: `names.py`.
"""
