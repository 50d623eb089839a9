"""Talks to a person: sentences, tables, pictures, pages and questions. It computes nothing.

Begin with `show.py`, which shows a plan, and `sentences.py`. Questions: `prompt.py`.
"""
