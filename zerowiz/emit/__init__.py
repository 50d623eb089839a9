"""Changes the world: writes files, starts processes."""
