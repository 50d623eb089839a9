"""What would make a job fail on this machine: `examine.py` runs the checks of the other modules."""
