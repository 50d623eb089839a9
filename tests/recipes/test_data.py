"""The recipe `a GPU`: the L2, an Ada card of 24 GB."""

import json
import re
from pathlib import Path

import pytest
from paths import ROOT
from recipes.copying import Copy, Recipe, read_recipes

TABLE = "zerowiz/data/gpus.json"
MODELS = "tests/core/machine/test_spec.py"

ROW = {
    "name": "NVIDIA L2",
    "aliases": ["L2-24GB"],
    "total_bytes": 24152899584,
    "usable_bytes": 23659020288,
    "compute_capability": [8, 9],
    "nvlink_links": 0,
    "nvlink_bytes_per_s": 0,
    "nvlink_gpus": 0,
    "pcie_generation": 4,
    "bf16_flop_per_s": 96500000000000,
    "fp16_flop_per_s": 96500000000000,
    "fp32_flop_per_s": 24100000000000,
    "memory_bytes_per_s": 300000000000,
    "pcie_spelling": None,
}
SOURCE = {
    "total": "[?] 23034 MiB, as L4",
    "usable": "[?] 22563 MiB, as L4",
    "capability": "[?] 8.9, as every Ada card",
    "nvlink": "[?] none",
    "pcie": "[?] 4.0",
    "flops": "[?] 96.5 TFLOPS",
    "fp32": "[?] 24.1 TFLOPS",
    "bandwidth": "[?] 300 GB/s",
}
NEXT = """  {
   "name": "NVIDIA L40S",
"""


def row(source: dict[str, str]) -> str:
    """The row as it is typed, before the next one."""
    typed = json.dumps({**ROW, "source": source}, indent=1)
    return "".join(f"  {line}\n" for line in f"{typed},".splitlines())


@pytest.mark.slow
def test_a_gpu_touches_the_table_alone(copied: Copy) -> None:
    recipe = read_recipes()["a GPU"]
    asked = ("plan", "--machine", "4xL2", "--model", "1b", "--json")
    refused = copied.zerowiz(*asked)
    assert "`L2` is not a GPU or an instance that zerowiz knows" in refused.stderr

    copied.insert(TABLE, row({}), before=NEXT)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, row({}), row(SOURCE))
    machine = copied.zerowiz(*asked).content["machine"]
    assert [("NVIDIA L2", [8, 9])] * 4 == [
        (gpu["name"], gpu["compute_capability"]) for gpu in machine["gpus"]
    ]
    copied.finish(recipe, MODELS)


# The recipe `an instance`: Azure's NC32ads A10 v4, two A10s.

INSTANCE_TABLE = "zerowiz/data/instances.json"
INSTANCES = "tests/core/machine/test_spec.py"
INSTANCE_SOURCE = {
    "memory": "https://aspire.dev/reference/api/csharp/aspire.hosting.azure.kubernetes/standardncadsa10v4"
}
INSTANCE_ROW = {
    "name": "NC32ads_A10_v4",
    "aliases": ["Standard_NC32ads_A10_v4"],
    "gpus": 2,
    "gpu": "A10",
    "host_bytes": 400 * 2**30,
    "network": None,
}
INSTANCE_NEXT = '  {"name": "NC24ads_A100_v4"'


def row_instance(source: dict[str, str]) -> str:
    """The row as it is typed, before the next one."""
    return f"  {json.dumps({**INSTANCE_ROW, 'source': source})},\n"


@pytest.mark.slow
def test_an_instance_touches_the_table_alone(copied: Copy) -> None:
    recipe = read_recipes()["an instance"]
    asked = ("plan", "--machine", "3xnc32ads_a10_v4", "--model", "100m", "--json")
    refused = copied.zerowiz(*asked)
    assert "`nc32ads_a10_v4` is not a GPU or an instance that zerowiz knows" in refused.stderr

    copied.insert(INSTANCE_TABLE, row_instance({}), before=INSTANCE_NEXT)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(INSTANCE_TABLE, row_instance({}), row_instance(INSTANCE_SOURCE))
    machine = copied.zerowiz(*asked).content["machine"]
    assert (3, ["NVIDIA A10"] * 2) == (machine["nodes"], [gpu["name"] for gpu in machine["gpus"]])
    assert 400 * 2**30 == machine["host"]["total_bytes"]
    copied.finish(recipe, INSTANCES)


# The recipe `a measured row`: one of the runs once more, which held a little more.

# It computes all figures anew, three times.

ROWS = "tests/measured/2026-11-h100.jsonl"
PAGE = "docs/accuracy.md"
FIGURES = "tests/accuracy/test_accuracy.py"
RENDERED = f"{FIGURES}::test_the_page_is_what_the_committed_figures_say"
IN_README = f"{FIGURES}::test_the_table_of_the_readme_is_what_the_committed_figures_say"


@pytest.mark.slow
@pytest.mark.thorough
def test_a_measured_row_touches_its_file_alone(copied: Copy) -> None:
    recipe = read_recipes()["a measured row"]
    last = (copied.root / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)[-1]
    row = json.loads(last)
    again = {**row, "id": "again", "peak_bytes": row["peak_bytes"] + 2**20}

    copied.edit(ROWS, last, f"{last}{json.dumps(again)}\n")
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.rewrite("tests/accuracy/report.py", "--write")
    page = (copied.root / PAGE).read_text(encoding="utf-8")
    assert f"| again | engine | {row['model']} | zero3 |" in page
    assert set() == copied.failed(*recipe.tests, IN_README)
    assert set() == copied.failed("--slow", RENDERED)
    assert {PAGE, "tests/accuracy/figures.json"} <= copied.rewritten
    copied.check_files(recipe)


# The recipe `a model family`: SmolLM3, a Llama whose every fourth layer has no positions.

MODEL_FAMILY_TABLE = "zerowiz/core/model/families.py"
COUNTS = "tests/core/model/test_types.py"
MODEL_FAMILY_PAGE = "docs/concepts/memory.md"
KEPT = "tests/core/memory/test_activations.py"

# transformers 5.23, models/smollm3/configuration_smollm3.py.
MODEL_FAMILY_ROW = """\
    "smollm3": Family(
        defaults={
            **_LLAMA,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "layer_types": None,
        },
        switches={**_TIED, **_BIASED, **_SLIDES, "mlp_bias": False},
        tensors=_LLAMA_TENSORS,
    ),
"""
UNMEASURED = "        tensors=_LLAMA_TENSORS,\n        measured=False,\n"
COUNTED = """\
    "smollm3": [
        {},
        SMALL | {"pad_token_id": 0, "num_key_value_heads": 3} | BIASED,
        GROUPED | {"pad_token_id": 0} | UNTIED,
    ],
"""
HELD = """\
    "smollm3": [GROUPED | {"pad_token_id": 0}],
"""


def plan(copied: Copy) -> dict[str, dict[str, object]]:
    """The plan of a model of the family, of which its config says next to nothing."""
    model = copied.root.parent / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "smollm3"}', encoding="utf-8")
    done = copied.zerowiz(
        *("plan", "--machine", "8xH200", "--model", str(model), "--no-trace", "--json")
    )
    planned: dict[str, dict[str, object]] = json.loads(done.stdout)
    return planned


@pytest.mark.slow
def test_a_model_family_touches_the_table_and_is_held_against_transformers(copied: Copy) -> None:
    recipe = read_recipes()["a model family"]
    assert "error" in plan(copied)

    copied.insert(MODEL_FAMILY_TABLE, MODEL_FAMILY_ROW, before='    "olmo2": Family(')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(
        MODEL_FAMILY_TABLE,
        MODEL_FAMILY_ROW,
        MODEL_FAMILY_ROW.replace("        tensors=_LLAMA_TENSORS,\n", UNMEASURED),
    )
    copied.insert_all(
        (COUNTS, COUNTED, '    "olmo2": ['),
        (KEPT, HELD, '    "olmo2": ['),
    )
    copied.make_blocks(MODEL_FAMILY_PAGE)
    planned = plan(copied)
    # 3.08 B parameters: https://huggingface.co/HuggingFaceTB/SmolLM3-3B.
    assert ("config", 3_075_098_624) == (planned["model"]["source"], planned["model"]["params"])
    assert set() == copied.failed("-k", "smollm3", COUNTS, KEPT)
    copied.finish(recipe, *recipe.tests)


# The recipe `a probe`: whether the kernel promises more memory than there is.

FACT = "zerowiz/core/machine/types.py"
PROBE = "zerowiz/probe/machine/host.py"
MERGE = "zerowiz/core/machine/merge.py"
SHOWN = "zerowiz/ui/machine.py"
SCRUB = "tests/machines/record.py"
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
    told = copied.zerowiz("machine", "--accelerator", "cpu", "--json").content
    host: dict[str, object] = told["machine"]["host"]
    return host


@pytest.mark.slow
def test_a_probe_touches_its_fact_its_file_its_merge_and_its_words(copied: Copy) -> None:
    recipe = read_recipes()["a probe"]

    copied.insert(FACT, FIELD, before="    computes_bf16: bool | None = None\n")
    unread = copied.unfinished(recipe)
    assert unread

    copied.insert_all(
        (PROBE, MODE, '_NODES = "sys/devices/system/node"\n'),
        (PROBE, PARSED, "def parse_list("),
        (PROBE, READ, "        memlock_bytes=parse_memlock("),
        (FILES, ANSWER, '        "proc/cpuinfo":'),
    )
    assert set(recipe.tests) - unread <= copied.unfinished(recipe)
    copied.edit(SCRUB, PATHS, RECORDED)
    copied.insert_all(
        (MERGE, MERGED, "        computes_bf16=_all_true("),
        (SHOWN, WORDS, '        "bf16": {True: '),
    )
    allowed = Path("/", OVERCOMMIT).read_text(encoding="utf-8") != "2\n"
    assert allowed is host_of(copied)["overcommits"]
    copied.finish(recipe, *recipe.tests, "tests/probe/machine/test_host.py")


# The table of recipes in docs/contributing.md: a test does each row, and its words are so.

RECIPES = read_recipes()
# The most files of the product and its pages that a newcomer may have to touch.
MOST = {
    "a GPU": 1,
    "a model family": 1,
    "a strategy": 4,
    "a setting": 3,
    "an optimizer": 4,
    "a precision": 4,
}
# The same, with the files of the tests.
MOST_IN_ALL = {"a GPU": 1, "a lint rule": 2, "a preflight check": 2}
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_a_test_does_each_recipe_of_the_table() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    done = [name for text in texts for name in re.findall(r'read_recipes\(\)\["(.+?)"\]', text)]
    assert sorted(RECIPES) == sorted(done)


def test_no_recipe_touches_more_files_than_it_may() -> None:
    assert {} == {name: most for name, most in MOST.items() if RECIPES[name].counts[0] > most}
    in_all = {name: sum(RECIPES[name].counts) for name in MOST_IN_ALL}
    assert {} == {name: in_all[name] for name, most in MOST_IN_ALL.items() if in_all[name] > most}


@each_recipe
def test_a_recipe_names_paths_and_tests_that_exist(recipe: Recipe) -> None:
    assert [] == [path for path in recipe.paths if not (ROOT / path).exists()]
    files = {test: ROOT / test.partition("::")[0] for test in recipe.tests}
    missing = [
        test
        for test, file in files.items()
        if f"def {test.partition('::')[2].partition('[')[0]}("
        not in file.read_text(encoding="utf-8")
    ]
    assert [] == missing
