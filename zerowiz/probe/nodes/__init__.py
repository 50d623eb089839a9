"""Reads what concerns several nodes: hostfile, addresses, rendezvous."""
