"""Search the settings that nobody decided for the fastest, or the smallest, job that fits."""
