"""Reads a model from a folder, the local cache or the Hugging Face Hub, or traces it.

Begin with `hf.py`.
"""
