"""Read a DeepSpeed hostfile."""

import re
from pathlib import Path

from zerowiz.errors import UsageError
from zerowiz.probe.named_file import read_named_text
from zerowiz.words import _

# deepspeed/launcher/runner.py, _parse_hostfile (0.19.8): the rest of a line is ignored.
_LINE = re.compile(r"^(\S+)\s+slots=(\d+)")


def parse_hostfile(text: str, name: str) -> dict[str, int]:
    """The count of slots by host, in the file's order.

    Args:
        text: The content of the file.
        name: What errors call the file.

    Raises:
        UsageError: A line is not `host slots=N`, a host stands twice, or there is no host.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line.strip())
        if match is None or match[1] in slots or int(match[2]) < 1:
            raise UsageError(
                _(
                    "hostfile `{name}` line {number}: `{line}` is not valid",
                    name=name,
                    number=number,
                    line=line.strip(),
                ),
                _("list each host once, as `host slots=N`"),
            )
        slots[match[1]] = int(match[2])
    if not slots:
        raise UsageError(
            _("hostfile `{name}` names no host", name=name), _("write one `host slots=N` per line")
        )
    return slots


def read_hostfile(path: Path) -> dict[str, int]:
    """The count of slots by host.

    Raises:
        UsageError: The file cannot be read or parsed.
    """
    try:
        text = read_named_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or _("it is not text")
        raise UsageError(
            _("hostfile `{path}` cannot be read: {reason}", path=path, reason=reason),
            _("write one `host slots=N` per line"),
        ) from None
    return parse_hostfile(text, str(path))
