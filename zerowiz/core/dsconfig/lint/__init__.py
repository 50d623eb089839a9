"""The linter of DeepSpeed configs: `zerowiz check`."""
