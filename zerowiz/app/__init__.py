"""The use cases: each joins the rooms below for one thing that a person wants."""
