"""What the forward pass keeps for the backward pass."""
