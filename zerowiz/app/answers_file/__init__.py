"""The answers file, `zerowiz.toml`: what is said once for many runs of a job."""
