"""DeepSpeed configs: how zerowiz writes one, how it reads yours, and which keys there are.

Begin with `write.py`. What is wrong with a config: `core/lint/`.
"""
