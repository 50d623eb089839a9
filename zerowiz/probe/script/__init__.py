"""Read what a training script says of its own run; it is never run."""

from zerowiz.probe.script.read import parse_script, read_script

__all__ = ["parse_script", "read_script"]
