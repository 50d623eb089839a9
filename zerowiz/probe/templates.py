"""Find and read the templates that ship with zerowiz."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def folder() -> Traversable:
    """`templates/` lies inside the package in a wheel, and beside it in a checkout."""
    package = files("zerowiz")
    inside = package.joinpath("templates")
    return inside if inside.is_dir() else package.joinpath("..", "templates")


def read_template(name: str) -> str:
    """The text of one template."""
    return folder().joinpath(name).read_text(encoding="utf-8")
