"""Fill a folder with links to the programs that the README lists and the base system has.

With that folder as PATH, what starts a program that nobody declared fails. On Debian, /usr/bin
holds declared and undeclared programs side by side, so the packages decide: those that every
system has (Essential, or of priority `required`), those that the README tells people to install,
and what these depend on. A driver's `nvidia-smi` comes along, for the README's GPUs.

    python3 .ci/declared_programs.py FOLDER
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
PLACES = tuple(map(Path, ("/usr/bin", "/usr/sbin", "/bin", "/sbin")))


def read_packages() -> frozenset[str]:
    """The Debian packages that the README tells people to install."""
    match = re.search(r"`apt install ([a-z0-9+. -]+)`", README.read_text(encoding="utf-8"))
    if match is None:
        sys.exit(f"{README} has no `apt install ...`: which programs are declared?")
    return frozenset(match[1].split())


def ask_dpkg(*words: str) -> list[str]:
    """The lines that dpkg-query prints."""
    done = subprocess.run(
        ["dpkg-query", *words], check=False, capture_output=True, text=True, encoding="utf-8"
    )
    return done.stdout.splitlines()


def list_declared(wanted: frozenset[str]) -> frozenset[str]:
    """The installed packages of the base system, those that are wanted, and what they need."""
    fields = ("db:Status-Status", "Package", "Essential", "Priority", "Provides", "Pre-Depends")
    form = "".join(f"${{{field}}}\t" for field in fields) + "${Depends}\n"
    rows = [line.split("\t") for line in ask_dpkg("-W", "-f", form)]
    installed = [row[1:] for row in rows if row[0] == "installed"]
    needs = {
        name: {*names_in(before), *names_in(with_it)} for name, *_, before, with_it in installed
    }
    providers: dict[str, set[str]] = {name: {name} for name in needs}
    for name, _, _, provides, *_ in installed:
        for virtual in names_in(provides):
            providers.setdefault(virtual, set()).add(name)
    open_names = {
        name
        for name, essential, priority, *_ in installed
        if essential == "yes" or priority == "required" or name in wanted
    }
    declared: set[str] = set()
    while open_names:
        name = open_names.pop()
        declared.add(name)
        found = set().union(*(providers.get(each, set()) for each in needs[name]))
        open_names |= found - declared
    return frozenset(declared)


def names_in(relations: str) -> Iterator[str]:
    """The names in a field of dependencies: `a (>= 1), b | c:any`."""
    for part in re.split(r"[,|]", relations):
        name = part.split("(")[0].strip().partition(":")[0]
        if name:
            yield name


def list_programs(packages: frozenset[str]) -> Iterator[Path]:
    """The programs of these packages, also by the names that alternatives give them (`c++`)."""
    files = {Path(line).resolve() for line in ask_dpkg("-L", *sorted(packages)) if "bin/" in line}
    for place in PLACES:
        for program in sorted(place.iterdir()) if place.is_dir() else ():
            if program.resolve() in files:
                yield program


def main() -> None:
    """Make the links; the Python that runs this is `python3` there."""
    folder = Path(sys.argv[1])
    if shutil.which("dpkg-query") is None:
        sys.exit("there is no dpkg here that tells which program is of which package")
    declared = list_declared(read_packages())
    nvidia_smi = shutil.which("nvidia-smi")
    programs = [*list_programs(declared), *([Path(nvidia_smi)] if nvidia_smi else [])]
    links = {program.name: program for program in programs} | {"python3": Path(sys.executable)}
    for name, program in links.items():
        (folder / name).symlink_to(program)
    sys.stdout.write(f"==> PATH holds {len(links)} programs of {len(declared)} packages\n")


if __name__ == "__main__":
    main()
