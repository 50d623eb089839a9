"""What helps a person who types: examples, and what a shell completes."""
