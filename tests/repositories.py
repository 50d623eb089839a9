"""Public repositories at pinned commits, from GitHub or from a folder of copies."""

import subprocess
from pathlib import Path


def find_repository(name: str, commit: str, *, mirror: str | None, cache: Path) -> Path:
    """A git repository that has the commit.

    Args:
        name: `owner/name`, as GitHub spells it.
        commit: Its whole hash.
        mirror: A folder of repositories called `owner+name`, which are asked in place of GitHub.
        cache: Where what GitHub gives is kept.

    Raises:
        subprocess.CalledProcessError: GitHub gives no such commit.
    """
    owner, repository_name = name.split("/")
    if mirror:
        copy = Path(mirror) / f"{owner}+{repository_name}"
        return copy / "repo" if (copy / "repo" / "HEAD").is_file() else copy
    repository = cache / owner / repository_name
    git = ["git", "-C", str(repository)]
    if not repository.exists():
        repository.mkdir(parents=True)
        subprocess.run([*git, "init", "--quiet", "--bare"], check=True)
    pin = f"refs/pinned/{commit}"
    known = subprocess.run([*git, "show-ref", "--quiet", pin], check=False)
    if known.returncode:
        address = f"https://github.com/{name}"
        wanted = ["--quiet", "--depth", "1", address, f"{commit}:{pin}"]
        subprocess.run([*git, "fetch", *wanted], check=True)
    return repository
