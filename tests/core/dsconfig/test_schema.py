"""A schema of a few keys: what it finds, what it takes, what it thinks was meant."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.dsconfig.schema import (
    Kind,
    Schema,
    SchemaKey,
    Unknown,
    choose_schema,
    decode_schemas,
    kind_of,
    may_hold_more,
    uncounted_keys,
)
from zerowiz.core.structs import encode, replace
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_ds_schema

PLAIN_INT = (Kind.BOOLEAN, Kind.WHOLE, Kind.DIGITS, Kind.AUTO)
SECTION = (Kind.OBJECT,)
STAGE = SchemaKey(path="zero.stage", takes=PLAIN_INT, choices=("0", "1", "2", "3"))
BUCKET = SchemaKey(
    path="zero.stage3_bucket_size", takes=PLAIN_INT, bounds={"gt": 0}, aliases=("bucket_size",)
)
DEVICE = SchemaKey(
    path="zero.offload.device", takes=(Kind.WORD, Kind.NULL), choices=('"cpu"', '"nvme"')
)
CLIPPING = SchemaKey(path="gradient_clipping", takes=tuple(Kind))
KEYS = (
    SchemaKey(path="", takes=SECTION, unknown=Unknown.IGNORED),
    SchemaKey(path="zero", takes=SECTION, unknown=Unknown.REFUSED, aliases=("zero_optimization",)),
    STAGE,
    BUCKET,
    SchemaKey(path="zero.offload", takes=(*SECTION, Kind.NULL), unknown=Unknown.REFUSED),
    DEVICE,
    SchemaKey(path="zero.mics"),
    CLIPPING,
    SchemaKey(path="optimizer", takes=SECTION, unknown=Unknown.IGNORED),
    SchemaKey(path="optimizer.params", takes=SECTION, unknown=Unknown.FREE),
)
SCHEMA = Schema(version="0.19.8", keys={key.path: key for key in KEYS})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("null", Kind.NULL),
        ("true", Kind.BOOLEAN),
        ("8", Kind.WHOLE),
        ("5e8", Kind.WHOLE),
        ("1.5", Kind.FRACTION),
        ("Infinity", Kind.FRACTION),
        ('"-8"', Kind.DIGITS),
        ('"8.0"', Kind.DECIMAL),
        ('"5e8"', Kind.NUMERAL),
        ('".5"', Kind.NUMERAL),
        ('"Off"', Kind.SWITCH),
        ('"auto"', Kind.AUTO),
        ('"Auto"', Kind.WORD),
        ('""', Kind.WORD),
        ("[]", Kind.ARRAY),
        ("{}", Kind.OBJECT),
    ],
)
def test_a_value_is_of_the_kind_that_deepspeed_treats_it_as(text: str, kind: Kind) -> None:
    assert kind == kind_of(json.loads(text))


@given(st.integers())
def test_a_whole_number_is_one_however_it_is_written(number: int) -> None:
    assert (Kind.WHOLE, Kind.DIGITS) == (kind_of(number), kind_of(str(number)))


@pytest.mark.parametrize("value", [0, 3, 2.0, True, "1", "auto"])
def test_a_choice_is_taken_as_a_number_a_digit_or_left_to_the_trainer(value: object) -> None:
    assert STAGE.accepts(value)


@pytest.mark.parametrize("value", [4, -1, "4", "two", 1.5, None, [1], {}])
def test_what_is_no_choice_is_refused(value: object) -> None:
    assert not STAGE.accepts(value)


@pytest.mark.parametrize(("value", "expected"), [(1, True), ("1", True), (0, False), ("0", False)])
def test_a_bound_holds_for_a_number_in_quotes_too(value: object, expected: bool) -> None:
    assert expected is BUCKET.accepts(value)


def test_capitals_count_unless_deepspeed_ignores_them() -> None:
    assert not DEVICE.accepts("CPU")
    assert replace(DEVICE, any_case=True).accepts("CPU")


def test_no_choice_is_asked_of_nothing() -> None:
    assert DEVICE.accepts(None)


def test_the_choices_of_a_list_are_those_of_its_items() -> None:
    passes = SchemaKey(path="passes", takes=(Kind.ARRAY,), choices=('"z1"', '"z3"'))
    assert passes.accepts(["z1", "z3"])
    assert not passes.accepts(["z1", "z2"])


def test_a_key_is_found_by_any_of_its_names() -> None:
    names = SCHEMA.names()
    assert names["zero.bucket_size"] is names["zero.stage3_bucket_size"] is BUCKET
    assert names["zero_optimization"] is names["zero"]


def test_the_children_of_a_section_are_those_right_inside_it() -> None:
    expected = ["zero.stage", "zero.stage3_bucket_size", "zero.offload", "zero.mics"]
    assert expected == [key.path for key in SCHEMA.children("zero")]
    assert ["zero", "gradient_clipping", "optimizer"] == [k.path for k in SCHEMA.children("")]


def test_a_key_that_takes_nothing_was_removed() -> None:
    assert ["zero.mics"] == [key.path for key in KEYS if key.removed]


def file_of(*steps: Mapping[str, object]) -> Mapping[str, object]:
    return {"source": "tests", "versions": list(steps)}


NEWEST = {"version": "2.0.0", "keys": [encode(key) for key in (KEYS[0], STAGE, DEVICE)]}
OLDER = {
    "version": "1.9.3",
    "dropped": ["zero.offload.device"],
    "keys": [{**encode(STAGE), "choices": ["0", "1"]}, encode(CLIPPING)],  # type: ignore[dict-item]
}
OLDEST = {"version": "1.8.0", "keys": []}


def test_a_version_is_told_by_how_it_differs_from_the_one_before_it() -> None:
    newest, older, oldest = decode_schemas(file_of(NEWEST, OLDER, OLDEST))
    assert {"": KEYS[0], "zero.stage": STAGE, "zero.offload.device": DEVICE} == newest.keys
    old_stage = replace(STAGE, choices=("0", "1"))
    assert {"": KEYS[0], "zero.stage": old_stage, "gradient_clipping": CLIPPING} == older.keys
    assert older.keys == oldest.keys


def test_a_file_that_is_none_is_refused_by_its_path() -> None:
    with pytest.raises(UsageError, match=r"`ds_schema.versions\[0\].keys\[0\].path` is missing"):
        decode_schemas(file_of({"version": "1", "keys": [{}]}))


@pytest.mark.parametrize(
    ("version", "chosen"),
    [
        ("2.0.0", "2.0.0"),
        ("2.0.0+cu130", "2.0.0"),
        ("1.9.3", "1.9.3"),
        ("1.10.0", "1.9.3"),
        ("1.9.2", "1.8.0"),
        ("2.1", "2.0.0"),
        ("1.2.3", "1.8.0"),
        (None, "2.0.0"),
    ],
)
def test_a_version_is_held_against_the_newest_that_is_not_newer(
    version: str | None, chosen: str
) -> None:
    schemas = decode_schemas(file_of(NEWEST, OLDER, OLDEST))
    assert chosen == choose_schema(schemas, version).version


# What a plan does not count is named, whatever DeepSpeed calls it.

UNCOUNTED_SCHEMA = read_ds_schema("0.19.8")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"sequence_parallel_size": 2}, ["sequence_parallel_size"]),
        ({"expert_parallel": {"enabled": True, "autoep_size": 2}}, ["expert_parallel"]),
        ({"expert_parallel": {"enabled": False, "autoep_size": 2}}, []),
        ({"compile": {"deepcompile": True, "debug_log": False}}, ["compile.deepcompile"]),
        ({"tensor_parallel": {"autotp_size": 2}}, ["tensor_parallel.autotp_size"]),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "super_offload": True}}},
            ["zero_optimization.offload_optimizer.super_offload"],
        ),
        (
            {"zero_optimization": {"stage": 2, "zenflow": {}}},
            ["zero_optimization.zenflow"],
        ),
        ({"zero_optimization": {"cpu_offload": True}}, ["zero_optimization.cpu_offload"]),
        ({"gradient_clipping": 0.5, "wandb": {"enabled": True}, "_comment": "mine"}, []),
        ({"bf16": {"enabled": True}, "bfloat16": {"immediate_grad_update": False}}, []),
        ({"bfloat16": {"immediate_grad_update": True}}, ["bf16.immediate_grad_update"]),
        ({"zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto"}}, []),
    ],
)
def test_a_key_that_no_line_counts_is_named(values: dict[str, object], expected: list[str]) -> None:
    assert expected == list(uncounted_keys(values, UNCOUNTED_SCHEMA))


def test_a_key_that_nobody_has_thought_of_is_named() -> None:
    new = SchemaKey(path="teleport_weights", takes=tuple(Kind), default="false")
    root = SchemaKey(path="", takes=(Kind.OBJECT,), unknown=Unknown.IGNORED)
    schema = Schema(version="1.0", keys={"": root, new.path: new})
    assert ["teleport_weights"] == list(uncounted_keys({"teleport_weights": True}, schema))
    assert [] == list(uncounted_keys({"teleport_weights": False}, schema))


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("activation_checkpointing.cpu_checkpointing", False),
        ("communication_data_type", True),
        ("zero_optimization.offload_param.device", False),
    ],
)
def test_a_key_that_may_hold_more_is_told_from_one_that_never_does(key: str, more: bool) -> None:
    assert more is may_hold_more([key], {})


@pytest.mark.parametrize(("name", "more"), [("Lion", False), ("OneBitAdam", True)])
def test_an_optimizer_that_keeps_less_than_adamw_never_holds_more(name: str, more: bool) -> None:
    assert more is may_hold_more(["optimizer.type"], {"optimizer": {"type": name}})
