"""What holds for every config: it is never too odd, and what zerowiz writes is clean."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import GOLDEN, TEMPLATES

from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.findings import Severity
from zerowiz.core.lint.config import Context
from zerowiz.core.lint.linter import fix_text, lint
from zerowiz.core.script.bindings import ScriptValue, State
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Strategy
from zerowiz.core.workload import Integration, Precision
from zerowiz.probe.package_data import read_ds_schema, read_ds_schemas

GOLDENS = GOLDEN / "configs"
HF, DEEPSPEED, ACCELERATE = Integration.HF, Integration.DEEPSPEED, Integration.ACCELERATE
SETTINGS = ScriptSettings(
    micro_batch=ScriptValue(value=2, source="here", change="there", state=State.FIXED),
    accumulation_steps=ScriptValue(value=4, source="here", change="there", state=State.FIXED),
    precision=ScriptValue(value=Precision.BF16, source="here", change="there", state=State.FIXED),
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
    context = Context(integration=DEEPSPEED)
    text = f'{{"train_batch_size": 8,\n  {wrong}}}'
    wanted = f'{{"train_batch_size": 8,\n  {right}}}' if right else '{"train_batch_size": 8}'
    assert wanted == fix_text(text, lambda changed: lint(changed, schema, context)).text


def test_a_number_for_a_switch_is_told_the_switch_and_no_bounds() -> None:
    text = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": 7}}'
    findings = lint(text, read_ds_schema(), Context(integration=DEEPSPEED))
    (found,) = (each for each in findings if each.rule.name == "out-of-range")
    assert "`overlap_comm` must be true, false or null, not `7`" == found.message
    assert "write true, false or null" == found.fix


def test_no_fix_takes_a_comment_away() -> None:
    text = '{"bf16": {"enabled": true, # why\n"loss_scale": 0}, "train_batch_size": 8}'
    (found,) = lint(text, read_ds_schema(), Context(integration=DEEPSPEED))
    assert ("misplaced-key", ()) == (found.rule.name, found.edits)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("integration", [None, HF, ACCELERATE])
def test_of_a_template_there_is_nothing_to_say(
    strategy: Strategy, integration: Integration | None
) -> None:
    text = (TEMPLATES / strategy.config_name).read_text(encoding="utf-8")
    assert () == lint(text, read_ds_schema(), Context(integration=integration, world_size=4))


def reader_of(name: str) -> Integration:
    return HF if "-hf-" in name else ACCELERATE if "-accelerate" in name else DEEPSPEED


@pytest.mark.parametrize("path", sorted(GOLDENS.iterdir()), ids=lambda path: path.stem)
def test_of_what_zerowiz_writes_there_is_nothing_to_say(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for integration in (None, reader_of(path.stem)):
        context = Context(integration=integration, world_size=4, gpu_bytes=80 * 2**30)
        assert () == lint(text, read_ds_schema(), context)
