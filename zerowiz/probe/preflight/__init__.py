"""What the preflight checks ask of this machine: `read.py` joins the others."""
