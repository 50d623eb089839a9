"""A job that starts: its command, its preflight checks, its attempts."""
