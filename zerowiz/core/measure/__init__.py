"""A run that is measured, and its row beside the prediction."""
