"""Each row of the table of bad releases is found at its bounds, and for the jobs that it harms."""

import pytest
from core.launch.doctor.cases import bad_release

from zerowiz.core.dsconfig.schema import HARMS, BadRelease, Harm
from zerowiz.core.findings import Severity
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.preflight.examine import examine
from zerowiz.core.preflight.facts import PreflightInput
from zerowiz.core.strategies import STRATEGIES, ZERO2, ZERO3
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Precision, Workload
from zerowiz.probe.package_data import read_bad_releases
from zerowiz.probe.preflight.read import read_facts
from zerowiz.probe.recording import HostFiles

ROWS = read_bad_releases()


def severities(job: PreflightInput) -> list[Severity]:
    return [each.severity for each in examine(job) if each.rule.name == "bad-release"]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.harm))
def test_a_row_is_found_from_its_first_release_until_its_last(
    row: BadRelease, strategy: StrategyRow
) -> None:
    def found(version: str) -> list[Severity]:
        workload = Workload(precision=row.precision or Precision.BF16)
        job = bad_release(version, strategy, row.library, workload=workload, uses_peft=row.adapters)
        return severities(job)

    assert found(row.since) == ([row.severity] if strategy.stage in row.stages else [])
    assert row.severity not in found(row.until)


def test_every_harm_is_of_a_row_and_every_row_names_a_page() -> None:
    assert {*HARMS} == {*Harm} == {row.harm for row in ROWS}
    assert all(source.startswith("https://") for row in ROWS for source in row.sources)
    assert all(not row.affects(row.library, row.upgrade) for row in ROWS)
    assert ROWS == read_facts(None, {}, HostFiles(), cuda=False).bad_releases


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.17.5", []),
        ("0.17.6", [Severity.ERROR]),
        ("0.18.2+cu13", [Severity.ERROR]),
        ("0.18.3", [Severity.WARNING]),
        ("0.19.3", [Severity.WARNING]),
        ("0.19.4", []),
        ("0.19.8", []),
        ("0.18", []),
        ("odd", []),
    ],
)
def test_gradients_are_wrong_in_two_spans_of_deepspeed(
    version: str, expected: list[Severity]
) -> None:
    assert expected == severities(bad_release(version, ZERO2))


def test_only_bf16_meets_a_module_that_runs_twice() -> None:
    assert [] == severities(
        bad_release("0.19.3", ZERO2, workload=Workload(precision=Precision.FP16))
    )


def test_an_adapter_is_empty_only_where_the_trainer_saves_it_and_nothing_gathers() -> None:
    job = bad_release("4.57.1", ZERO3, "transformers", uses_peft=True)
    assert [Severity.ERROR] == severities(job)
    near = [
        bad_release("5.0.0", ZERO3, "transformers", uses_peft=True),
        bad_release("4.57.1", ZERO3, "transformers", uses_peft=False),
        *(
            bad_release("4.57.1", ZERO3, "transformers", uses_peft=True, gathers=gathers)
            for gathers in (True, "auto")
        ),
    ]
    assert job.planned is not None
    own_loop = replace(job.planned, integration=Integration.DEEPSPEED)
    near.append(replace(job, planned=own_loop))
    assert [[]] * len(near) == [severities(each) for each in near]
