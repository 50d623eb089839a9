"""Read the settings of a training script from its syntax tree, without running it."""

from zerowiz.probe.script.read import parse_script, read_script

__all__ = ["parse_script", "read_script"]
