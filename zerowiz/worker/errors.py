"""What a case can lack."""


class MissingLibraryError(Exception):
    """A case needs a library that this environment lacks."""
