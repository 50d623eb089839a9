"""The machines of the tables: which could run a job, and what an hour of each costs."""
