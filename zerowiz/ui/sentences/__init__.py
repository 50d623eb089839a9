"""Makes sentences of the values that core decided with, a module for what they are about."""
