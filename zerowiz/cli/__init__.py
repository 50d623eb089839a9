"""The command line: parses, calls a use case of `app`, prints, and chooses the exit code.

Begin with `commands.py`. Each command has a module; `options.py` has what they share.
"""
