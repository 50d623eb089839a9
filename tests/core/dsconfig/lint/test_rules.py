"""Each rule finds its mistake, at its key and line, and does not find what is nearly one."""

import pytest
from lint.rows import DEEPSPEED, FOUND, SILENT, ZERO_2, Row, optimizer, scheduler, top, zero

from zerowiz.core.lint.config import ConfigFinding, Context
from zerowiz.core.lint.linter import RULES, lint
from zerowiz.probe.package_data import read_ds_schema


def found(text: str, context: Context, version: str | None = None) -> tuple[ConfigFinding, ...]:
    return lint(text, read_ds_schema(version), context)


@pytest.mark.parametrize("row", FOUND, ids=lambda row: f"{row.rule}-{row.key}")
def test_a_rule_finds_its_mistake_once_and_where_it_stands(row: Row) -> None:
    places = [
        (each.key, each.line, each.severity)
        for each in found(row.text, row.context)
        if each.rule.name == row.rule
    ]
    assert [(row.key, row.line, row.severity)] == places


@pytest.mark.parametrize(("rule", "text", "context"), SILENT)
def test_a_rule_says_nothing_of_what_is_nearly_its_mistake(
    rule: str, text: str, context: Context
) -> None:
    assert [] == [each for each in found(text, context) if each.rule.name == rule]


def test_every_rule_is_shown_with_a_mistake_and_with_a_near_miss() -> None:
    names = {rule.name for rule in RULES}
    assert names == {row.rule for row in FOUND}
    assert names == {rule for rule, _, _ in SILENT}


def test_no_two_rules_share_a_code_or_a_name() -> None:
    assert len(RULES) == len({rule.code for rule in RULES})
    assert len(RULES) == len({rule.name for rule in RULES})


def test_an_older_deepspeed_is_asked_for_its_own_keys() -> None:
    text = top('"amp": {"enabled": true}', optimizer("OneBitAdam"))
    assert ["removed-key", "unknown-optimizer"] == [
        each.rule.name for each in found(text, DEEPSPEED)
    ]
    assert [] == [each.rule.name for each in found(text, DEEPSPEED, "0.18.9")]


def test_a_dot_in_a_name_makes_no_path() -> None:
    text = top('"zero_optimization.offload_optimizer.device": "cpu"', ZERO_2)
    rules = {each.rule.name for each in found(text, DEEPSPEED)}
    assert {"unknown-key", "zero-without-16-bit"} == rules


@pytest.mark.parametrize(
    ("text", "key", "why", "fix"),
    [
        (top('"notes": 1'), "notes", "DeepSpeed ignores the key", "remove it"),
        (
            zero(2, '"notes": 1'),
            "zero_optimization.notes",
            "DeepSpeed rejects a config with an unknown key in this section",
            "remove it",
        ),
        (
            top('"fp16": {"dynamic_loss_scale": true}'),
            "fp16.dynamic_loss_scale",
            "DeepSpeed rejects a config with an unknown key in this section",
            "remove it: a `loss_scale` of 0, the default, is dynamic",
        ),
        (
            top(optimizer("AdamW"), scheduler("WarmupLR", '{"warmup_type": "cosine"}')),
            "scheduler.params.warmup_type",
            "DeepSpeed warns, and trains with `log` instead",
            "write `log` or `linear`",
        ),
        (
            top('"gradient_clipping": "abc"'),
            "gradient_clipping",
            "DeepSpeed compares it with 0 in the first step, and fails",
            "write a number",
        ),
        (
            zero(2, '"overlap_comm": "yes"'),
            "zero_optimization.overlap_comm",
            "DeepSpeed reads it as true",
            "write true",
        ),
        (
            zero(2, '"reduce_scatter": "no"'),
            "zero_optimization.reduce_scatter",
            "DeepSpeed reads it as false",
            "write false",
        ),
        (top('"dump_state": "no"'), "dump_state", "DeepSpeed reads it as true", "write false"),
        (
            top('"gradient_clipping": -1.0'),
            "gradient_clipping",
            "DeepSpeed clips to a norm above 0 only",
            "write 0 to train without clipping, or the norm that you mean",
        ),
    ],
)
def test_a_finding_says_what_becomes_of_this_very_config(
    text: str, key: str, why: str, fix: str
) -> None:
    assert [(why, fix)] == [
        (each.why, each.fix) for each in found(text, DEEPSPEED) if each.key == key
    ]


def test_a_switch_that_may_be_null_wants_one_of_three_words() -> None:
    findings = found(zero(2, '"overlap_comm": []'), DEEPSPEED)
    (each,) = (each for each in findings if each.key.endswith("overlap_comm"))
    assert "`overlap_comm` must be true, false or null, not `[]`" == each.message
    assert "write true, false or null" == each.fix


def test_what_changes_nothing_is_one_line_without_a_reason() -> None:
    text = zero(2, '"allgather_partitions": true')
    (each,) = (each for each in found(text, DEEPSPEED) if "allgather" in each.key)
    assert ("", None) == (each.why, each.fix)
    assert each.message.endswith("does not read `allgather_partitions`: remove it")


@pytest.mark.parametrize(
    ("member", "key", "fix"),
    [
        ('"bf16": true', "bf16", 'write `{"enabled": true}`'),
        (
            '"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}',
            "zero_optimization.offload_optimizer",
            'write `{"device": "cpu"}`',
        ),
        (
            '"zero_optimization": {"stage": 2, "offload_optimizer": "gpu"}',
            "zero_optimization.offload_optimizer",
            "write an object or null",
        ),
        ('"activation_checkpointing": true', "activation_checkpointing", "write an object"),
        (
            '"optimizer": {"type": "AdamW", "lr": 1e-4}',
            "optimizer.lr",
            "move it into `optimizer.params`, or remove it",
        ),
    ],
)
def test_what_was_meant_for_a_section_is_written_into_it(member: str, key: str, fix: str) -> None:
    fixes = [each.fix for each in found(top(member), DEEPSPEED) if each.key == key]
    assert [fix] == fixes
