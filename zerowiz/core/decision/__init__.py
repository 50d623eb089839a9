"""Which strategy fits, which one is chosen, and what helps when none fits."""
