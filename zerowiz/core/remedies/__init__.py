"""Find what would make a job fit: each remedy is a change of options that was evaluated again."""
