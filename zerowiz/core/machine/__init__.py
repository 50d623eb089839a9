"""The machine of a job: its GPUs, links, host, network and scheduler."""
