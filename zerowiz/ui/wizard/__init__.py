"""What the wizard shows between its questions."""
