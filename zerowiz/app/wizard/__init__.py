"""The wizard's conversation: what is open, what an answer leads to, going back."""
