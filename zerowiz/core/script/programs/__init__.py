"""Programs around the Trainer that start their own ranks, and take a job from one YAML file."""
