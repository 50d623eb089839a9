"""The loops that take the steps of a case: a plain engine's, and the Trainer's."""
