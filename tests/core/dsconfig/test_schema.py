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
from zerowiz.probe.files import read_ds_schema

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


NO_STAGES: tuple[object, ...] = (4, -1, "4", "two", 1.5, None, [1], {})
PASSES = SchemaKey(path="passes", takes=(Kind.ARRAY,), choices=('"z1"', '"z3"'))


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        # A choice is a number, a digit, or left to the Trainer.
        *((STAGE, value, True) for value in (0, 3, 2.0, True, "1", "auto")),
        *((STAGE, value, False) for value in NO_STAGES),
        # A bound holds for a number in quotes too.
        *((BUCKET, value, True) for value in (1, "1")),
        *((BUCKET, value, False) for value in (0, "0")),
        # Capitals count, unless DeepSpeed ignores them; no choice is asked of nothing.
        (DEVICE, "CPU", False),
        (replace(DEVICE, any_case=True), "CPU", True),
        (DEVICE, None, True),
        # The choices of a list are those of its items.
        (PASSES, ["z1", "z3"], True),
        (PASSES, ["z1", "z2"], False),
    ],
)
def test_a_key_accepts_what_deepspeed_takes(key: SchemaKey, value: object, accepted: bool) -> None:
    assert accepted is key.accepts(value)


def test_a_key_is_found_by_any_of_its_names() -> None:
    names = SCHEMA.names()
    assert names["zero.bucket_size"] is names["zero.stage3_bucket_size"] is BUCKET
    assert names["zero_optimization"] is names["zero"]


def test_the_children_of_a_section_are_those_right_inside_it() -> None:
    expected = ["zero.stage", "zero.stage3_bucket_size", "zero.offload", "zero.mics"]
    assert expected == [key.path for key in SCHEMA.children("zero")]
    assert ["zero", "gradient_clipping", "optimizer"] == [k.path for k in SCHEMA.children("")]
    # A key that takes nothing was removed.
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
        ({"hybrid_engine": {"enabled": True, "max_out_tokens": 8}}, ["hybrid_engine"]),
        ({"hybrid_engine": {"enabled": False, "max_out_tokens": 8}}, []),
        ({"expert_parallel": {"enabled": True, "autoep_size": 2}}, []),
        (
            {"expert_parallel": {"enabled": True, "comm_backend": "deepep"}},
            ["expert_parallel.comm_backend"],
        ),
        ({"compile": {"deepcompile": True, "debug_log": False}}, ["compile.deepcompile"]),
        (
            {"tensor_parallel": {"autotp_size": 2, "vocab_parallel_lm_head": True}},
            ["tensor_parallel.vocab_parallel_lm_head"],
        ),
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
    ("key", "values", "more"),
    [
        ("activation_checkpointing.cpu_checkpointing", {}, False),
        ("communication_data_type", {}, True),
        # An optimizer that keeps less than AdamW.
        ("optimizer.type", {"optimizer": {"type": "Lion"}}, False),
        ("optimizer.type", {"optimizer": {"type": "OneBitAdam"}}, True),
    ],
)
def test_a_key_that_may_hold_more_is_told_from_one_that_never_does(
    key: str, values: dict[str, object], more: bool
) -> None:
    assert more is may_hold_more([key], values)
