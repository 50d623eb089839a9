"""Models: their architecture, their tensors, where they are read from."""
