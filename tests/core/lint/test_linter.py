"""What holds for every config: it is never too odd, and what zerowiz writes is clean."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lint.rows import DEEPSPEED, FOUND, SILENT, ZERO_2, Row, optimizer, scheduler, top, zero
from paths import GOLDEN, TEMPLATES

from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.findings import Edit, Finding, Rule, Severity
from zerowiz.core.lint.config import Context
from zerowiz.core.lint.linter import RULES, apply_edits, fix_text, lint
from zerowiz.core.script.facts import ScriptValue, State
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.workload import Integration, Precision
from zerowiz.probe.files import read_ds_schema, read_ds_schemas

# A fixed text has every edit that can be, and nothing else changed.

RULE = Rule(code="ZW101", name="unknown-key", severity=Severity.ERROR, why="it is refused")


def finding(*edits: Edit, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        rule=RULE, severity=severity, key="k", line=1, column=1, message="m", edits=edits
    )


def edit(start: int, end: int, text: str) -> Edit:
    return Edit(start=start, end=end, text=text)


def upper_case(text: str) -> tuple[Finding, ...]:
    """Every lower case `x` is a mistake, and is fixed by a capital."""
    return tuple(finding(edit(m.start(), m.end(), "X")) for m in re.finditer("x", text))


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((), "abcdef"),
        ((edit(0, 1, "A"),), "Abcdef"),
        ((edit(4, 6, ""), edit(0, 0, ">")), ">abcd"),
        ((edit(1, 3, "-"), edit(3, 4, "+")), "a-+ef"),
        ((edit(6, 6, "g"),), "abcdefg"),
    ],
)
def test_edits_are_of_the_old_text_in_any_order(edits: tuple[Edit, ...], expected: str) -> None:
    assert expected == apply_edits("abcdef", edits)
    assert expected == apply_edits("abcdef", edits[::-1])


@pytest.mark.parametrize(
    "edits",
    [
        (edit(0, 3, "x"), edit(2, 4, "y")),
        (edit(1, 2, "x"), edit(1, 2, "x")),
        (edit(2, 2, "x"), edit(2, 2, "y")),
        (edit(0, 4, ""), edit(1, 2, "y")),
    ],
)
def test_of_edits_of_the_same_characters_the_first_is_made(edits: tuple[Edit, ...]) -> None:
    def both(text: str) -> tuple[Finding, ...]:
        return tuple(map(finding, edits)) if text == "abcdef" else ()

    assert apply_edits("abcdef", edits[:1]) == fix_text("abcdef", both).text


@given(st.text(alphabet="xyz\r\n\ufeff"))
def test_what_no_edit_touches_stays(text: str) -> None:
    fixed = fix_text(text, upper_case)
    assert text.replace("x", "X") == fixed.text
    assert () == fixed.findings
    assert text.count("x") == len(fixed.fixed)


def doubled(text: str) -> tuple[Finding, ...]:
    """Every double `a` is a mistake, and is fixed by a single one."""
    return tuple(finding(edit(m.start(), m.start() + 2, "a")) for m in re.finditer("(?=aa)", text))


@pytest.mark.parametrize(
    ("text", "check", "fixed", "fixes", "left"),
    [
        pytest.param("aaaaa", doubled, "a", 4, 0, id="one in the way of another: the next round"),
        pytest.param(
            "abc",
            {"abc": (finding(edit(0, 1, "A")), finding(edit(0, 1, "B"), edit(2, 3, "C")))}.get,
            "Abc",
            1,
            0,
            id="whole or not at all",
        ),
        pytest.param(
            "?",
            {
                "?": (finding(edit(0, 1, "!"), severity=Severity.WARNING),),
                "!": (finding(),),
            }.get,
            "?",
            0,
            1,
            id="one that makes an error is taken back",
        ),
        pytest.param(
            "a",
            {"a": (finding(edit(0, 1, "b")),), "b": (finding(edit(0, 1, "a")),)}.get,
            "a",
            10,
            1,
            id="two that undo each other end",
        ),
        pytest.param("a", {"a": (finding(),)}.get, "a", 0, 1, id="no edits"),
    ],
)
def test_a_fix_is(
    text: str,
    check: Callable[[str], tuple[Finding, ...] | None],
    fixed: str,
    fixes: int,
    left: int,
) -> None:
    done = fix_text(text, lambda changed: check(changed) or ())
    assert (fixed, fixes, left) == (done.text, len(done.fixed), len(done.findings))


GOLDENS = GOLDEN / "configs"
HF, LINTER_DEEPSPEED, ACCELERATE = Integration.HF, Integration.DEEPSPEED, Integration.ACCELERATE
SETTINGS = ScriptSettings(
    values={
        "micro_batch": ScriptValue(value=2, source="here", change="there", state=State.FIXED),
        "accumulation_steps": ScriptValue(
            value=4, source="here", change="there", state=State.FIXED
        ),
        "precision": ScriptValue(
            value=Precision.BF16, source="here", change="there", state=State.FIXED
        ),
    }
)
CONTEXTS = st.builds(
    Context,
    integration=st.sampled_from([None, *Integration]),
    world_size=st.sampled_from([None, 1, 6]),
    settings=st.sampled_from([None, SETTINGS]),
    gpu_bytes=st.sampled_from([None, 8 * 2**30]),
)
SCHEMAS = st.sampled_from(read_ds_schemas())
NAMES = st.sampled_from(
    sorted({key.name for key in read_ds_schema().keys.values()} | {"x.y", "bfloat16"})
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["auto", "Auto", "AdamW", "SGD", "WarmupLR", "cpu", "nvme", "5e8", "false"])
    | st.text(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=15,
)


@st.composite
def configs(draw: st.DrawFn) -> str:
    """A config of keys that DeepSpeed knows, with whatever values."""
    keys = read_ds_schema().keys
    config: dict[str, object] = {}
    for path in draw(st.lists(st.sampled_from(sorted(filter(None, keys))), max_size=12)):
        *above, name = path.split(".")
        holder = config
        for section in above:
            inner = holder.setdefault(section, {})
            holder = inner if isinstance(inner, dict) else {}
        holder[name] = draw(SCALARS | st.just({}))
    config |= draw(st.dictionaries(NAMES, VALUES, max_size=2))
    return json.dumps(config)


@given(st.text(), SCHEMAS, CONTEXTS)
def test_no_text_is_too_odd(text: str, schema: Schema, context: Context) -> None:
    found = lint(text, schema, context)
    assert [*found] == sorted(found, key=lambda each: (each.line, each.column, each.rule.code))


@given(VALUES.map(json.dumps) | configs(), SCHEMAS, CONTEXTS)
def test_no_json_is_too_odd_and_every_place_is_in_it(
    text: str, schema: Schema, context: Context
) -> None:
    for each in lint(text, schema, context):
        assert 1 == each.line
        assert 1 <= each.column <= len(text) + 1
        assert "\n" not in each.message


@given(configs(), CONTEXTS)
def test_what_is_fixed_can_still_be_read_and_is_no_worse(text: str, context: Context) -> None:
    schema = read_ds_schema()
    before = lint(text, schema, context)
    after = fix_text(text, lambda changed: lint(changed, schema, context))
    errors = [
        sum(each.severity is Severity.ERROR for each in found) for found in (before, after.findings)
    ]
    assert errors[1] <= errors[0]
    assert isinstance(json.loads(after.text), dict)


FIXED = (
    ('"gradient_acumulation_steps": 4', '"gradient_accumulation_steps": 4'),
    ('"gradient_clipping": "1.0"', '"gradient_clipping": 1.0'),
    ('"zero_optimization": {"stage": 2, "cpu_offload": true}',
     '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}'),
    ('"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": true}',
     '"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}'),
    ('"bf16": {"enabled": true, "loss_scale": 0, "hysteresis": 2}', '"bf16": {"enabled": true}'),
    ('"sparse_gradients": false', None),
    ('"dump_state": "False"', '"dump_state": false'),
)  # fmt: skip


@pytest.mark.parametrize(("wrong", "right"), FIXED)
def test_a_safe_fix_leaves_the_rest_as_it_was(wrong: str, right: str | None) -> None:
    schema = read_ds_schema()
    context = Context(integration=LINTER_DEEPSPEED)
    text = f'{{"train_batch_size": 8,\n  {wrong}}}'
    wanted = f'{{"train_batch_size": 8,\n  {right}}}' if right else '{"train_batch_size": 8}'
    assert wanted == fix_text(text, lambda changed: lint(changed, schema, context)).text


def test_no_fix_takes_a_comment_away() -> None:
    text = '{"bf16": {"enabled": true, # why\n"loss_scale": 0}, "train_batch_size": 8}'
    (found,) = lint(text, read_ds_schema(), Context(integration=LINTER_DEEPSPEED))
    assert ("misplaced-key", ()) == (found.rule.name, found.edits)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("integration", [None, HF, ACCELERATE])
def test_of_a_template_there_is_nothing_to_say(
    strategy: Strategy, integration: Integration | None
) -> None:
    text = (TEMPLATES / strategy.config_name).read_text(encoding="utf-8")
    assert () == lint(text, read_ds_schema(), Context(integration=integration, world_size=4))


def reader_of(name: str) -> Integration:
    return HF if "-hf-" in name else ACCELERATE if "-accelerate" in name else LINTER_DEEPSPEED


@pytest.mark.parametrize("path", sorted(GOLDENS.iterdir()), ids=lambda path: path.stem)
def test_of_what_zerowiz_writes_there_is_nothing_to_say(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for integration in (None, reader_of(path.stem)):
        context = Context(integration=integration, world_size=4, gpu_bytes=80 * 2**30)
        assert () == lint(text, read_ds_schema(), context)


# Each rule finds its mistake, at its key and line, and does not find what is nearly one.


def found(text: str, context: Context, version: str | None = None) -> tuple[Finding, ...]:
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
    assert len(RULES) == len(names) == len({rule.code for rule in RULES})


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
            top('"gradient_cliping": 1'),
            "gradient_cliping",
            "DeepSpeed ignores the key, and has this value of `gradient_clipping` by default",
            "rename it to `gradient_clipping`",
        ),
        (
            top('"gradient_cliping": 0.5'),
            "gradient_cliping",
            "DeepSpeed ignores the key",
            "rename it to `gradient_clipping`",
        ),
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
            "DeepSpeed uses it all the same, and fails",
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


@pytest.mark.parametrize(
    ("reader", "why"),
    [(HF, "the Trainer fails"), (ACCELERATE, "a loop trains"), (LINTER_DEEPSPEED, "a loop trains")],
)
def test_what_becomes_of_a_script_that_disagrees_is_that_of_its_loop(
    reader: Integration, why: str
) -> None:
    text = top('"train_micro_batch_size_per_gpu": 8').replace('"train_batch_size": 8, ', "")
    findings = found(text, Context(integration=reader, settings=SETTINGS))
    assert [True] == [why in each.why for each in findings if each.rule.code == "ZW701"][:1]


@pytest.mark.parametrize("value", ["[]", "7"])
def test_a_switch_that_may_be_null_wants_one_of_three_words(value: str) -> None:
    findings = found(zero(2, f'"overlap_comm": {value}'), DEEPSPEED)
    (each,) = (each for each in findings if each.key.endswith("overlap_comm"))
    assert f"`overlap_comm` must be true, false or null, not `{value}`" == each.message
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


# Sizes that hurt are found by what they cost, and their fixes cost less.

GIB = 2**30
OF_DANGER = {"bucket-too-large", "kept-whole", "small-pieces", "nothing-prefetched"}
SIZES = (
    "reduce_bucket_size",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "sub_group_size",
)


def found_danger(
    stage: int, key: str, elements: int, gpu_bytes: int | None = None, version: str | None = None
) -> tuple[Finding, ...]:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": stage, key: elements}}
    return lint(json.dumps(config), read_ds_schema(version), Context(gpu_bytes=gpu_bytes))


def names(findings: tuple[Finding, ...]) -> set[str]:
    return {each.rule.name for each in findings if each.rule.name in OF_DANGER}


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("digits", [400, 4300])
def test_a_number_that_torch_cannot_count_is_survived(key: str, digits: int) -> None:
    for stage in (2, 3):
        assert not names(found_danger(stage, key, 10**digits - 1, 8 * GIB))


@pytest.mark.parametrize(
    ("key", "elements", "gpu_gib", "expected"),
    [
        ("stage3_max_live_parameters", 10**9, 8, {"kept-whole"}),
        ("stage3_max_live_parameters", 10**9, 16, set()),
        # Half of the distance is held.
        ("stage3_max_reuse_distance", 10**9, 8, set()),
        ("stage3_max_reuse_distance", 3 * 10**9, 8, {"kept-whole"}),
        ("stage3_prefetch_bucket_size", 10**9, 8, {"kept-whole"}),
        ("stage3_prefetch_bucket_size", 5 * 10**7, 8, set()),
        ("stage3_max_live_parameters", 10**12, None, set()),
        ("stage3_param_persistence_threshold", 10**7, None, set()),
        ("stage3_param_persistence_threshold", 10**7 + 1, None, {"kept-whole"}),
        ("stage3_prefetch_bucket_size", 0, None, {"nothing-prefetched"}),
        ("stage3_max_reuse_distance", 0, 8, set()),
        ("sub_group_size", 999_999, None, {"small-pieces"}),
        ("sub_group_size", 10**6, None, set()),
        ("reduce_bucket_size", 999_999, None, {"small-pieces"}),
    ],
)
def test_a_size_is_weighed(
    key: str, elements: int, gpu_gib: int | None, expected: set[str]
) -> None:
    assert expected == names(found_danger(3, key, elements, gpu_gib and gpu_gib * GIB))


@pytest.mark.parametrize("version", ["0.16.9", "0.17.6", "0.18.9"])
def test_an_older_deepspeed_divides_by_the_bucket(version: str) -> None:
    for stage, expected in ((0, 0), (1, 0), (2, 1), (3, 1)):
        rules = [
            each.rule.name for each in found_danger(stage, "reduce_bucket_size", 0, version=version)
        ]
        assert expected == rules.count("out-of-range"), stage


def test_a_bucket_of_nothing_is_one_mistake() -> None:
    rules = [each.rule.name for each in found_danger(2, "reduce_bucket_size", 0)]
    assert 1 == rules.count("out-of-range")


sizes = st.sampled_from(SIZES)
elements = st.integers(0, 10**12)
gpus = st.integers(1, 200).map(lambda gib: gib * GIB)


@given(key=sizes, count=elements, gpu_bytes=gpus, more=gpus)
def test_a_larger_gpu_never_makes_a_size_worse(
    key: str, count: int, gpu_bytes: int, more: int
) -> None:
    small, large = sorted((gpu_bytes, more))
    assert names(found_danger(3, key, count, large)) <= names(found_danger(3, key, count, small))


@given(key=sizes, count=elements, gpu_bytes=gpus)
def test_what_a_fix_says_to_write_is_not_found_again(key: str, count: int, gpu_bytes: int) -> None:
    for finding in found_danger(3, key, count, gpu_bytes):
        words = (finding.fix or "").split()
        if finding.rule.name in {"kept-whole", "small-pieces", "nothing-prefetched"}:
            (said,) = [int(word) for word in words if word.isdigit()]
            again = names(found_danger(3, key, said, gpu_bytes))
            assert finding.rule.name not in again, (said, again)


@given(key=sizes, count=elements)
def test_below_stage_3_only_the_bucket_is_weighed(key: str, count: int) -> None:
    assert set() == names(found_danger(2, key, count, GIB)) or key == "reduce_bucket_size"
    assert set() == names(found_danger(0, key, count, GIB))


# Arguments of optimizers are those that DeepSpeed and torch take, read out of them.


def found_optimizer_arguments(
    name: str, params: dict[str, object], offload: str | None = None, version: str | None = None
) -> list[tuple[str, str | None, Severity]]:
    zero = {"stage": 2, "offload_optimizer": {"device": offload}} if offload else {"stage": 0}
    config = {
        "train_batch_size": 8,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": name, "params": params},
    }
    findings = lint(
        json.dumps(config), read_ds_schema(version), Context(integration=Integration.HF)
    )
    return [(each.key, each.fix, each.severity) for each in findings if each.rule.code == "ZW101"]


ADAM_WORDS = dict.fromkeys(("lr", "muon_lr", "adam_lr", "momentum"), 0.1)
FUSED = dict.fromkeys(("set_grad_none", "fp32_optimizer_states"), True)
ONE_BIT = {"freeze_step": 9, "cuda_aware": False, "comm_backend_name": "nccl"}


@pytest.mark.parametrize(
    ("name", "params", "more", "expected"),
    [
        *(
            (name, {"lr": 0.1, word: 1}, {}, [(f"optimizer.params.{word}", fix, Severity.ERROR)])
            for name, word, fix in (
                ("SGD", "betas", "remove it"),
                ("SGD", "weigth_decay", "write `weight_decay`"),
                ("Lamb", "learning_rate", "write `lr`"),
                ("LION", "eps", "remove it"),
                ("adagrad", "epsilon", "write `eps`"),
                ("RMSprop", "params", "remove it"),
                ("Lion", "torch_adam", "remove it"),
            )
        ),
        # The CPU has classes of its own; as long as nobody knows where it steps, either counts.
        ("Lion", {"set_grad_none": True}, {}, []),
        ("Lion", {"set_grad_none": True}, {"offload": "cpu"}, ["set_grad_none"]),
        ("Lion", FUSED, {"offload": "auto"}, []),
        ("Adagrad", {"amsgrad": False}, {"offload": "cpu"}, []),
        ("Adagrad", {"amsgrad": False}, {}, ["amsgrad"]),
        ("AdamW", {"set_grad_none": True}, {}, []),
        ("AdamW", {"set_grad_none": True}, {"offload": "cpu"}, ["set_grad_none"]),
        ("AdamW", {"maximize": True}, {}, ["maximize"]),
        ("AdamW", {"maximize": True, "torch_adam": True}, {}, []),
        # What Muon does not look at is a warning.
        ("Muon", {"nesterov": True}, {}, [("optimizer.params.nesterov", None, Severity.WARNING)]),
        ("muon", {"ns_steps": 5}, {}, [("optimizer.params.ns_steps", None, Severity.WARNING)]),
        ("Muon", ADAM_WORDS, {}, []),
        ("OneBitAdam", ONE_BIT, {"version": "0.18.9"}, []),
        ("ZeroOneAdam", {"freeze_step": 9}, {"version": "0.18.9"}, ["freeze_step"]),
        # Of a class that nobody knows nothing is said.
        ("MuSGD", {"anything": 1}, {}, []),
        ("auto", {"anything": 1}, {}, []),
    ],
)
def test_an_argument_is_found_where_the_class_does_not_take_it(
    name: str,
    params: dict[str, object],
    more: dict[str, str],
    expected: list[str | tuple[str, str | None, Severity]],
) -> None:
    found = found_optimizer_arguments(name, params, **more)
    for each, (key, fix, severity) in zip(expected, found, strict=True):
        whole = (f"optimizer.params.{each}", None, severity) if isinstance(each, str) else each
        assert whole == (key, whole[1] and fix, severity)


@pytest.mark.parametrize(("word", "rises"), [("lr", True), ("weight_decay", False), ("eps", False)])
def test_a_loss_that_rises_is_said_of_a_learning_rate_alone(word: str, rises: bool) -> None:
    """DeepSpeed 0.19.8 trains on with a negative `eps` or `weight_decay`, and the loss falls."""
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {word: -0.1}}}
    context = Context(integration=Integration.DEEPSPEED)
    [finding] = lint(json.dumps(config), read_ds_schema(), context)
    assert ("ZW203", rises) == (finding.rule.code, "the loss rises" in (finding.because or ""))


NOT_BUILT = """{"train_batch_size": 8,
"optimizer": {"type": "AdamW", "params": {"learning_rate": 1e-5}},
"scheduler": {"type": "WarmupLRR", "params": {"warmup_min_lr": "Auto"}}}
"""


@pytest.mark.parametrize(
    ("context", "optimizer", "scheduler"),
    [
        (Context(), "an error unless", "an error unless"),
        (Context(integration=Integration.DEEPSPEED), None, None),
        (
            Context(integration=Integration.DEEPSPEED, passed=frozenset({"optimizer"})),
            "DeepSpeed ignores it",
            None,
        ),
        (
            Context(integration=Integration.DEEPSPEED, passed=frozenset({"lr_scheduler"})),
            None,
            "DeepSpeed ignores it",
        ),
        (Context(integration=Integration.HF, passed=frozenset({"optimizer"})), None, None),
        (Context(integration=Integration.ACCELERATE), None, None),
    ],
)
def test_what_deepspeed_may_not_build_is_a_warning_that_says_who_fails(
    context: Context, optimizer: str | None, scheduler: str | None
) -> None:
    found = [each for each in lint(NOT_BUILT, read_ds_schema(), context) if each.line > 1]
    assert {"optimizer.params.learning_rate", "scheduler.type"} <= {each.key for each in found}
    for finding in found:
        argument, words = (
            ("optimizer", optimizer)
            if finding.key.startswith("optimizer")
            else ("lr_scheduler", scheduler)
        )
        severity = Severity.ERROR if words is None else Severity.WARNING
        assert (finding.key, severity) == (finding.key, finding.severity)
        # What fails only if DeepSpeed builds it is no reason where it does not.
        said = finding.why if words == "DeepSpeed ignores it" else finding.message
        if words is not None:
            assert words in said
            assert f"the script passes its own `{argument}`" in said


def test_params_that_are_no_object_fail_whatever_the_script_passes() -> None:
    text = '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": 1}}'
    (found,) = lint(text, read_ds_schema(), Context(passed=frozenset({"optimizer"})))
    assert ("optimizer.params", Severity.ERROR) == (found.key, found.severity)
