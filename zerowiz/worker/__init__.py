"""Runs inside the ranks under `deepspeed`: the only room that loads torch; nothing imports it."""
