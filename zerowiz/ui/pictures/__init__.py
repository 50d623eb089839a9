"""Pictures of a plan and a machine: one module for each, lines of words or a table."""
