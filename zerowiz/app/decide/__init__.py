"""The decision for one job, and the files that follow from it."""
