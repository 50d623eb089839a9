"""What one rank holds, allocation by allocation."""
