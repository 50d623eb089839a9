"""How a job is started: its command, its environment, its nodes."""
