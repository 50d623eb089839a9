"""Every value has its sentence, and every size its unit."""

import io

import pytest
from measured.rows import read_model
from ui.streams import TerminalStream

from zerowiz.core.decision.evaluate import Verdict, evaluate
from zerowiz.core.decision.flowchart import FlowchartQuestion, Reason
from zerowiz.core.decision.plan_input import PlanInput, Uncounted
from zerowiz.core.decision.questions import QUESTIONS, AnswerKind
from zerowiz.core.decision.uncertainty import Assumption, SettledBy
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Interconnect, LinkClass, Network, NetworkKind
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table
from zerowiz.ui import sentences
from zerowiz.ui.text import bare_gib, count, decimal_gb, fold, fold_command, gib, small


def test_every_reason_question_verdict_link_assumption_and_gap_has_words() -> None:
    words = [
        *map(sentences.reason, Reason),
        *(sentences.question(each, None) for each in FlowchartQuestion),
        *(sentences.VERDICTS[verdict] for verdict in Verdict),
        *(sentences.link(Interconnect(link_class=link)) for link in LinkClass),
        *map(sentences.assumption, Assumption),
        *map(sentences.uncounted, Uncounted),
        *map(sentences.settles, SettledBy),
    ]
    assert all(words)
    assert len(words) == len(set(words))
    assert not [word for word in words if word.endswith(".")]


def test_a_network_that_nobody_knows_is_said_to_count_as_slow_with_the_way_out() -> None:
    two = parse_spec("2x8xH100-80GB", read_gpu_table())
    said = "; between nodes unknown, treated as slow: set it with `--interconnect`"
    assert sentences.links(two).endswith(said)
    known = Network(kind=NetworkKind.INFINIBAND)
    assert sentences.links(replace(two, network=known)).endswith("; between nodes InfiniBand")
    assert "between nodes" not in sentences.links(replace(two, nodes=1))


def test_every_question_of_the_wizard_names_its_flag_and_ends_as_a_question() -> None:
    for question in QUESTIONS:
        assert "?" in question.text
        assert question.flag == question.flag.upper() or question.flag.startswith("$")
        assert (
            None is question.problem(question.default or "x") or question.kind is AnswerKind.COUNT
        )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (gib(None), "unknown"),
        (gib(47 * 2**30), "47.0 GiB"),
        (decimal_gb(28_500_000_000), "28.5 GB"),
        (decimal_gb(14_000_000_000), "14 GB"),
        (small(0), "0 B"),
        (small(1023), "1023 B"),
        (small(1024), "1.0 KiB"),
        (small(5 * 2**20), "5.0 MiB"),
        (small(3 * 2**40), "3072.0 GiB"),
        (bare_gib(None), "?"),
        (bare_gib(0), "0.0"),
        (bare_gib(2**30 // 25), "0.04"),
        (bare_gib(-(2**30)), "-1.0"),
        (count(6_738_415_616), "6.74 B"),
        (count(124_439_808), "124 M"),
        (count(12), "12"),
    ],
)
def test_sizes_are_written_as_people_read_them(said: str, expected: str) -> None:
    assert expected == said


@pytest.mark.parametrize(
    ("assumptions", "assumed"),
    [
        ((), ""),
        (
            (Assumption.FUSED_OPTIMIZER, Assumption.FOREACH),
            "; assumes a fused Adam, an Adam that copies lists of tensors",
        ),
    ],
)
def test_an_interval_says_its_bounds_and_what_it_assumes(
    assumptions: tuple[Assumption, ...], assumed: str
) -> None:
    model = read_model("llama-2-7b")
    machine = parse_spec("4xH100-80GB", read_gpu_table())
    job = PlanInput(machine=machine, model=model, workload=Workload())
    found = evaluate(job, ZERO2).interval
    assert found is not None
    interval = replace(found, assumptions=assumptions, never_together=())
    bounds = (
        f"torch allocates {gib(found.expected_bytes)}, {bare_gib(found.low_bytes)} to "
        f"{bare_gib(found.high_bytes)} on any rank"
    )
    assert bounds + assumed == sentences.interval(interval, model)


def test_a_pipe_gets_whole_lines() -> None:
    line = "word " * 100
    assert line == fold(line, io.StringIO())
    assert line.strip() == fold_command(line.split(), io.StringIO())


def test_a_terminal_gets_lines_that_end_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = ["error:", *[f"`--option-{i} value`" for i in range(9)]]
    folded = fold(" ".join(words), TerminalStream(), hang=7).splitlines()
    assert " ".join(words) == " ".join(line.strip() for line in folded)
    assert max(map(len, folded)) <= 40
    assert all(line.startswith(" " * 7) for line in folded[1:])


def test_a_folded_command_is_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = [f"--option-{i}" for i in range(12)]
    folded = fold_command(words, TerminalStream(), before="next: ")
    assert max(map(len, folded.splitlines())) <= 40
    assert ["next:", *words] == folded.replace("\\\n", " ").split()
