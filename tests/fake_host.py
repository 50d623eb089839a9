"""A fake host: a folder where /proc, /sys and /dev would be."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.probe.recording.files import HostFiles


def build_host(
    root: Path, files: Mapping[str, str | int], links: Mapping[str, str] | None = None
) -> HostFiles:
    """A host with these files, and these links to other paths of it (folders, made if missing)."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else f"{content}\n")
    for name, target in (links or {}).items():
        if not (root / target).exists():
            (root / target).mkdir(parents=True)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(root / target)
    return HostFiles(root=root, folder=root)
