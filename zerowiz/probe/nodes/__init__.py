"""Reads what a job on several nodes needs: hostfile, addresses, node rank, rendezvous."""
