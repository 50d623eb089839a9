"""How often the laws are tried: `pytest --hypothesis-profile=thorough tests/core/test_laws.py`."""

from hypothesis import settings

settings.register_profile("thorough", max_examples=1000, deadline=None)
