"""How a job ended, and what follows from that."""
