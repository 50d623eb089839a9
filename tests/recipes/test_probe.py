"""The recipe `a probe`: whether the kernel promises more memory than there is."""

import json
from pathlib import Path

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

FACT = "zerowiz/core/machine/types.py"
PROBE = "zerowiz/probe/machine/host.py"
MERGE = "zerowiz/core/machine/merge.py"
SHOWN = "zerowiz/ui/machine.py"
SCRUB = "zerowiz/probe/recording.py"
FILES = "tests/fake_host.py"
OVERCOMMIT = "proc/sys/vm/overcommit_memory"

FIELD = """\
    overcommits: bool | None = None
    \"\"\"Whether memory can be reserved beyond what there is; else a large rank may not fork.\"\"\"
"""
PARSED = """\
def parse_overcommit(text: str) -> bool | None:
    \"\"\"Whether /proc/sys/vm/overcommit_memory allows it; 2 is the mode that does not.\"\"\"
    size = _parse_size(text)
    return None if size is None else size != _NO_OVERCOMMIT


"""
MODE = """\
# Linux, Documentation/mm/overcommit-accounting.rst.
_NO_OVERCOMMIT = 2

"""
READ = f"""\
        overcommits=parse_overcommit(_read(files, "{OVERCOMMIT}")),
"""
MERGED = """\
        overcommits=_all_true(host.overcommits for host in hosts),
"""
WORDS = """\
        "overcommits": "no overcommit" if host.overcommits is False else None,
"""
PATHS = 're.compile(r"proc/meminfo|proc/(?:self|\\d+)/\\w+|sys/.+|dev/shm|dev/infiniband/\\w+|\\{\\w+\\}")'
RECORDED = """\
re.compile(
    r"proc/meminfo|proc/sys/vm/overcommit_memory|proc/(?:self|\\d+)/\\w+|sys/.+|dev/shm"
    r"|dev/infiniband/\\w+|\\{\\w+\\}"
)"""
ANSWER = f"""\
        "{OVERCOMMIT}": "2\\n",
"""


def host_of(copied: Copy) -> dict[str, object]:
    """This host, as the copy reads it."""
    done = copied.zerowiz("machine", "--accelerator", "cpu", "--json")
    assert 0 == done.returncode, done.stderr
    host: dict[str, object] = json.loads(done.stdout)["machine"]["host"]
    return host


def test_a_probe_touches_its_fact_its_file_its_merge_and_its_words(copied: Copy) -> None:
    recipe = read_recipes()["a probe"]

    copied.insert(FACT, FIELD, before="    disk: Disk | None = None\n")
    unread = copied.unfinished(recipe)
    assert unread

    copied.insert(PROBE, MODE, before='_NODES = "sys/devices/system/node"\n')
    copied.insert(PROBE, PARSED, before="def parse_list(")
    copied.insert(PROBE, READ, before="        disk=_read_disk(files),\n")
    copied.insert(FILES, ANSWER, before='        "proc/cpuinfo":')
    assert set(recipe.tests) - unread <= copied.unfinished(recipe)
    copied.edit(SCRUB, PATHS, RECORDED)
    copied.insert(MERGE, MERGED, before="        disk=_merge_disks(")
    copied.insert(SHOWN, WORDS, before='        "bf16": {True: ')
    allowed = Path("/", OVERCOMMIT).read_text(encoding="utf-8") != "2\n"
    assert allowed is host_of(copied)["overcommits"]
    assert set() == copied.failed(*recipe.tests, "tests/probe/machine/test_host.py")
    copied.check_files(recipe)
