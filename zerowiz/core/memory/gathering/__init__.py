"""What stage 3 gathers of the parameters, and when it lets go."""
