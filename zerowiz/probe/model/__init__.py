"""Reads models from folders, the local cache and the Hugging Face Hub, or by a trace."""
