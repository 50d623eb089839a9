"""List the allocations that DeepSpeed's wrappers have in common, whatever they shard.

Symbols are those of `rank_sizes.py`. Ids such as b4-000 name the run of tests/measured/h200.jsonl
that settled a formula.
"""
