"""Errors of a measured case."""


class MissingLibraryError(Exception):
    """A case needs a library that this environment lacks."""
