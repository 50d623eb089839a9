"""Talks to a person: questions, tables, sentences."""
