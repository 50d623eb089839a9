"""The rules of `zerowiz check`, a module for each family."""
