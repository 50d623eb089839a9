"""What people call a machine, and which rows of the tables they mean."""
