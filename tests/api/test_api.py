"""The Python API does what its pages say, loads nothing early, and neither prints nor exits."""

import doctest
import inspect
import io
import json
import pydoc
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from operator import attrgetter
from pathlib import Path

import nbformat
import pytest
from cli.harness import Run
from msgspec import Struct
from msgspec.structs import fields
from nbclient import NotebookClient
from paths import ROOT
from rich.console import Console

import zerowiz
from zerowiz.app import api
from zerowiz.app.catalog import MachineChoice
from zerowiz.app.options import Options
from zerowiz.core.decision.job import Objective
from zerowiz.core.workload import Method
from zerowiz.errors import AnswerNeededError, HandEditedError, NothingFitsError, UsageError

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["reference/python.md", "guides/notebooks.md"])
def test_what_a_page_shows_runs(page: str) -> None:
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False)
    assert tried > 5
    assert 0 == failed


def test_each_function_has_an_example_that_runs() -> None:
    runner, finder = doctest.DocTestRunner(), doctest.DocTestFinder(recurse=False)
    functions = ("plan", "find_machines", "read_machine", "check", "write_config")
    for name in (*functions, "PlanResult.limits"):
        (example,) = finder.find(attrgetter(name)(api), name, globs=vars(api).copy())
        assert example.examples, name
        runner.run(example)
    assert 0 == runner.summarize().failed


def test_a_plan_has_its_choice_as_the_json_has_it() -> None:
    result = api.plan("2xp4d.24xlarge", model="1b", global_batch=64, objective=Objective.FASTEST)
    choice = result.to_dict()["choice"]
    assert result.choice is not None
    assert isinstance(choice, dict)
    step = result.choice.workload
    assert (choice["strategy"], choice["micro_batch"], choice["accumulation_steps"]) == (
        result.choice.strategy.name,
        step.micro_batch,
        step.accumulation_steps,
    )
    nothing = api.plan("2xRTX4090", model="70b", stage="1")
    assert nothing.choice is None


def test_the_largest_steps_are_those_of_the_command(here: Run) -> None:
    result = api.plan("4xA100-40GB", model="7b", method=Method.LORA)
    largest = result.limits()
    words = ("--machine", "4xA100-40GB", "--model", "7b", "--method", "lora", "--limits")
    printed = json.loads(here("plan", *words, "--json").stdout)["limits"]
    assert printed == result.to_dict(limits=largest)["limits"]
    assert [
        (each["strategy"], each["micro_batch"], each["sequence_tokens"]) for each in printed
    ] == [(each.strategy.name, each.micro_batch, each.sequence_tokens) for each in largest]
    assert {False, True} == {each.gradient_checkpointing for each in largest}
    assert any(each.micro_batch > 0 for each in largest)
    assert result.to_dict()["limits"] is None


@pytest.mark.parametrize("setting", [{"nodes": 2}, {"gpus_per_node": 2}, {"host_memory": "1GiB"}])
def test_a_machine_that_was_read_takes_no_settings_of_its_own(setting: dict[str, object]) -> None:
    machine = api.read_machine("4xA100-40GB", **setting)  # type: ignore[arg-type]
    planned = api.plan("4xA100-40GB", model="1b", **setting)  # type: ignore[arg-type]
    assert machine == planned.machine
    with pytest.raises(UsageError, match=f"`{next(iter(setting))}` has no effect") as refused:
        api.plan(machine, model="1b", **setting)  # type: ignore[arg-type]
    assert "`read_machine`" in refused.value.hints[0]


def test_machines_are_compared_as_the_command_does() -> None:
    found = api.find_machines(model="1b", gpus_per_node=1, nodes=1)
    listed = found.to_dict()["machines"]
    assert isinstance(listed, list)
    assert [offer.candidate.name for offer in found.offers.offers] == [
        each["machine"] for each in listed
    ]
    with pytest.raises(UsageError, match="`machine` has to be one machine here") as refused:
        api.plan("all", model="1b")
    assert "use `zerowiz.find_machines` to compare machines" in refused.value.hints
    for asks in (api.find_machines, partial(api.plan, "8xH100")):
        with pytest.raises(AnswerNeededError, match="Which model"):
            asks()


def test_every_name_is_there_and_nothing_else_is_loaded_by_the_import() -> None:
    script = (
        "import sys, zerowiz\n"
        "before = {name for name in sys.modules if name.startswith('zerowiz')}\n"
        "heavy = {'msgspec', 'typer', 'torch', 'inspect'} & set(sys.modules)\n"
        "for name in zerowiz.__all__: getattr(zerowiz, name)\n"
        "print(sorted(before), sorted(heavy), sorted(set(zerowiz.__all__) - set(dir(zerowiz))))\n"
        "print(sorted({'torch', 'transformers', 'deepspeed', 'typer', 'prompt_toolkit'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}\n{script}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "['zerowiz'] [] []\n[]\n" == done.stdout
    assert not hasattr(zerowiz, "planned")


def test_a_result_is_the_object_that_the_command_prints(here: Run) -> None:
    done = here("plan", "--json", "--machine", "4xA100-40GB", "--model", "1b")
    assert json.loads(done.stdout) == zerowiz.plan("4xA100-40GB", model="1b").to_dict()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    zerowiz.plan("4xA100-40GB", model="7b")
    zerowiz.check({"zero_optimization": {"stage": 9}})
    assert ("", "") == tuple(capfd.readouterr())


def test_that_nothing_fits_is_a_result_until_a_config_is_asked_for() -> None:
    result = zerowiz.plan("2xRTX4090", model="70b")
    assert not result
    assert result.chosen is None
    with pytest.raises(NothingFitsError):
        result.config()


def test_the_settings_are_keywords_with_the_types_of_the_options() -> None:
    keywords = inspect.signature(zerowiz.plan).parameters
    assert "machine" == next(iter(keywords))
    assert set(keywords) <= set(Options.__annotations__)
    assert {"model", "micro_batch", "force"} <= set(keywords)
    assert set() == {"yes", "quiet", "as_json", "dry_run"} & set(keywords)


def test_help_has_a_line_for_the_signature_and_two_for_each_setting() -> None:
    page = pydoc.plain(pydoc.render_doc(zerowiz.plan))
    assert "\nplan(machine=None, /, **settings)\n" in page
    assert page.index("    Machine:") < page.index("    Training step:") < page.index("    Choice:")
    row = "        micro_batch: int = 1\n            Sequences per GPU in one forward pass\n"
    assert row in page
    assert '        stage: "auto" | "0" | "1" | "2" | "3"\n' in page
    for name in set(inspect.signature(zerowiz.plan).parameters) - {"machine"}:
        assert 1 == page.count(f"        {name}: ")
    assert max(map(len, page.splitlines())) <= 110
    machine = pydoc.plain(pydoc.render_doc(zerowiz.read_machine))
    assert "        gpus: str\n" in machine
    assert "micro_batch" not in machine


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"seq_len": 4096, "grad_accum": 2},
            {"sequence_tokens": 4096, "accumulation_steps": 2},
        ),
        ({"stage": 2}, {"stage": "2"}),
        ({"method": "lora"}, {"method": Method.LORA}),
    ],
    ids=["names of options", "numbers", "words"],
)
def test_a_setting_has_the_name_of_its_option_and_takes_words(
    one: dict[str, object], other: dict[str, object]
) -> None:
    by_one = zerowiz.plan("4xA100-40GB", model="1b", **one)  # type: ignore[arg-type]
    assert by_one.to_dict() == zerowiz.plan("4xA100-40GB", model="1b", **other).to_dict()  # type: ignore[arg-type]


# What to do next is a note of the error, in words of Python.
@pytest.mark.parametrize(
    ("settings", "message", "notes"),
    [
        ({"microbatch": 3}, "there is no setting `microbatch`", None),
        ({"seq_length": 4}, "there is no setting `seq_length`", ["did you mean `seq_len`?"]),
        ({"quiet": True}, "there is no setting `quiet`", None),
        (
            {"global_batch": 16, "accumulation_steps": 3, "micro_batch": 4},
            None,
            ["remove `accumulation_steps=3`", "or remove `global_batch=16`"],
        ),
        ({"precision": "fp16", "optimizer_state_dtype": "bf16"}, None, None),
        ({"precision": "fp99"}, "`precision` must be one of bf16, fp16, fp32, not 'fp99'", None),
        (
            {"micro_batch": "three"},
            "`micro_batch` must be a whole number, such as 4096 or 4k, not 'three'",
            None,
        ),
        ({"allow_slow": 1}, "`allow_slow` must be true or false, not 1", None),
        ({"stage": 4}, "`stage` must be one of auto, 0, 1, 2, 3, not '4'", None),
        ({"lr": "low"}, "`lr` must be a number, not 'low'", None),
        ({"seq_len": 1024, "sequence_tokens": 2048}, "`sequence_tokens` is set twice", None),
        ({"nodes": 10**6}, "`nodes=1000000` must be a whole number from 1 to 100000", None),
        ({"micro_batch": 0}, "`micro_batch=0` must be a whole number from 1 to 10000000", None),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    settings: dict[str, object], message: str | None, notes: list[str] | None
) -> None:
    with pytest.raises(UsageError) as refused:
        zerowiz.plan("4xA100-40GB", **{"model": "7b", **settings})  # type: ignore[arg-type]
    assert str(refused.value) == (message or str(refused.value))
    said = getattr(refused.value, "__notes__", [])
    assert [f"hint: {note}" for note in notes or ()] == said[: len(notes or ())]
    assert all(note.startswith("hint: ") and "$" not in note for note in said)


def test_a_config_is_written_with_its_plan_and_a_changed_one_is_kept(tmp_path: Path) -> None:
    result = zerowiz.plan("4xA100-40GB", model="1b")
    path = zerowiz.write_config(result, tmp_path)
    assert result.config() == json.loads(path.read_text(encoding="utf-8"))
    assert path.with_name(f"{path.stem}.plan.json").is_file()
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(HandEditedError):
        zerowiz.write_config(result, tmp_path)
    assert "{}" == path.read_text(encoding="utf-8")
    assert path == zerowiz.write_config(result, tmp_path, force=True)


def test_a_file_is_checked_as_its_values_are(tmp_path: Path) -> None:
    values = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2, "x": 1}}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")
    found = zerowiz.check(path, integration="deepspeed")
    assert found
    assert found == zerowiz.check(values, integration="deepspeed")


def test_a_reader_of_a_config_has_the_words_of_the_option() -> None:
    assert zerowiz.check({}, integration="trainer") == zerowiz.check({}, integration="hf")
    with pytest.raises(UsageError, match="`integration` must be one of"):
        zerowiz.check({}, integration="nobody")


@pytest.mark.parametrize("value", [{1, 2}, object(), Path("x")])
def test_values_that_no_config_has_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="the config holds what JSON cannot"):
        zerowiz.check({"train_batch_size": value})


def test_a_result_shows_itself_in_a_notebook() -> None:
    html = zerowiz.plan("2xRTX4090", model="70b")._repr_html_()
    answer, helps, flowchart = map(
        html.index,
        (
            "nothing fits 70b on 2 x NVIDIA GeForce RTX 4090; the closest, ",
            "What would help",
            "Does a replica fit",
        ),
    )
    assert answer < helps < flowchart


# The notebook of the documents runs from its first cell to its last.

NOTEBOOK = ROOT / "docs" / "notebooks" / "plan.ipynb"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of this very interpreter, which finds this checkout."""
    folder = tmp_path / "kernels" / "here"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "here", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    for name, value in {
        "JUPYTER_PATH": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONPATH": str(ROOT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return "here"


# zmq and asyncio of the client leave sockets to the end of the process.
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs_and_shows_the_table(kernel: str, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, kernel_name=kernel, timeout=60, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)
    assert "<b>ZeRO-3 fits: " in shown
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert ["1024", "2048", "4096", "8192"] == [line.split()[0] for line in printed.splitlines()]


def test_the_committed_notebook_has_no_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert [] == [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


# What the Python API returns shows itself in a line, with the figures that a person looks for.

LONGEST_CHARACTERS = 1000
"""Of any value in a result."""
SHORT_CHARACTERS = 200
"""Of those that people meet."""


@cache
def compared() -> MachineChoice:
    return api.find_machines(model="1b", gpus_per_node=1, nodes=1, price="H100-80GB=2.50")


def structs_in(value: object) -> Iterator[Struct]:
    """The values in a value, and those in them."""
    if isinstance(value, Struct):
        yield value
        for each in fields(value):
            yield from structs_in(getattr(value, each.name))
    elif isinstance(value, tuple):
        for item in value[:2]:
            yield from structs_in(item)


@cache
def figures() -> Mapping[str, tuple[Struct, tuple[str, ...]]]:
    """The values that people meet, each with figures that it shows."""
    plan = api.plan("4xA100-40GB", model="7b", gradient_checkpointing=True)
    nothing = api.plan("2xRTX4090", model="70b", stage="1")
    found = compared()
    chosen, choice = plan.chosen, plan.choice
    assert chosen is not None
    assert choice is not None
    assert chosen.step_time is not None
    expected = f"expected_seconds={chosen.step_time.expected_seconds:.4g}"
    offers, (first, *_) = found.offers, found.offers.offers
    return {
        "verdict": (
            chosen,
            (
                "strategy.name=zero3",
                "verdict=fits",
                f"device_bytes={chosen.device_bytes}",
                f"budget_bytes={chosen.budget_bytes}",
                f"step_time.{expected}",
            ),
        ),
        "choice": (
            choice,
            ("workload.micro_batch=1", "workload.accumulation_steps=1", "strategy.name=zero3"),
        ),
        "machine": (
            plan.machine,
            ("world_size=4", "gpus[0].name=NVIDIA A100-SXM4-40GB", "nvlink_all"),
        ),
        "model": (plan.model, ("name=7b", "params=7000000000")),
        "estimate": (
            chosen.estimate,
            (f"peak_bytes={chosen.estimate.peak_bytes}", "peak_phase=backward"),
        ),
        "host": (chosen.host, ()),
        "time": (
            chosen.step_time,
            (expected, f"low_seconds={chosen.step_time.low_seconds:.4g}"),
        ),
        "strategy": (chosen.strategy, ("name=zero3", "stage=3", "offload=none")),
        "machines": (found, (f"len(offers.offers)={len(offers.offers)}", "name=1xH100-80GB")),
        "offers": (offers, ()),
        "offer": (first, ("1xH100-80GB", "ddp", "price_per_hour=2.5", "cost=2")),
        "refused": (nothing.strategies[0], ()),
        "plan": (plan, ("zero3 for 7b on 4 x NVIDIA A100-SXM4-40GB",)),
        "nothing": (nothing.decided.decision, ("chosen.strategy.name=None", "chosen.verdict=None")),
    }


def in_rich(value: Struct) -> str:
    console = Console(file=io.StringIO(), width=1000)
    console.print(value)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_value_that_people_meet_is_short_here_and_in_rich() -> None:
    meet = {name: each for name, (each, _) in figures().items() if name not in {"plan", "nothing"}}
    sizes = {name: (len(repr(each)), len(in_rich(each)) / 2) for name, each in meet.items()}
    assert {} == {name: size for name, size in sizes.items() if max(size) > SHORT_CHARACTERS}


def test_a_value_shows_its_figures_by_the_names_that_they_have() -> None:
    for name, (value, expected) in figures().items():
        shown = repr(value)
        assert shown.startswith(f"<{type(value).__name__}: "), name
        assert [] == [figure for figure in expected if figure not in shown], name


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"accounting": "textbook"},
        {"micro_batch": 64, "stage": "3", "offload": "all"},
    ],
)
def test_no_value_in_a_result_is_longer_than_a_screen(settings: dict[str, object]) -> None:
    result = api.plan("2xRTX4090", model="7b", **settings)  # type: ignore[arg-type]
    parts = (result.decided.decision, result.remedies, compared())
    shown = {type(each).__name__: len(repr(each)) for part in parts for each in structs_in(part)}
    assert {} == {name: size for name, size in shown.items() if size > LONGEST_CHARACTERS}
