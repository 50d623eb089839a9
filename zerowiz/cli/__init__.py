"""The command line: it parses, calls a use case of `app`, prints, and chooses the exit code."""
