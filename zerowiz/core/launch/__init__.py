"""How a job is started: its files, its command, its environment, its nodes."""
