"""What a job can use: GPUs, links, host, network, scheduler."""
