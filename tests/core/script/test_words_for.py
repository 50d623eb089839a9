"""The words that zerowiz adds give a script the value that was settled, and nothing else."""

import argparse

import pytest
from core.script.test_settle_and_deliver import HF_PARSER
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.script.arguments import Option, Reads, ScriptParser, Takes, write_words
from zerowiz.core.script.bindings import State
from zerowiz.core.script.facts import Convention, ScriptFacts, ValueSource
from zerowiz.core.script.settings import resolve_script
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Method, Optimizer, Precision


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("micro_batch", 2),
        ("gradient_checkpointing", True),
        ("optimizer", Optimizer.ADAMW_8BIT),
        ("optimizer", Optimizer.SGD),
        *(("precision", precision) for precision in Precision),
    ],
)
def test_the_words_give_the_value(name: str, value: object) -> None:
    words = resolve_script(HF_PARSER, ()).words_for(name, value)
    assert words is not None
    setting = getattr(resolve_script(HF_PARSER, words), name)
    assert value == setting.value
    # bf16 is a default of this script already.
    by_words = value is not Precision.BF16
    assert setting.state is (State.SAID if by_words else State.OPEN)
    assert bool(words) == by_words


def test_nobody_says_otherwise_what_was_said() -> None:
    said = resolve_script(HF_PARSER, ("--per_device_train_batch_size", "4", "--fp16", "--no_bf16"))
    assert said.words_for("micro_batch", 2) is None
    assert said.words_for("precision", Precision.BF16) is None
    asked = said.words_for("optimizer", Optimizer.SGD)
    assert asked == ("--optim", "sgd")


def test_what_the_code_fixes_stays_and_what_it_leaves_to_a_library_too() -> None:
    fixed = ValueSource(value=4, line=7, code="TrainingArguments(...=4)", keyword="x")
    left = ValueSource(value=8, line=7, keyword="x", default_of="TrainingArguments")
    for binding, state in ((fixed, State.FIXED), (left, State.OPEN)):
        settings = resolve_script(replace(HF_PARSER, micro_batch=binding), ())
        assert settings.micro_batch is not None
        assert state is settings.micro_batch.state
        assert settings.words_for("micro_batch", 2) is None


def test_a_default_that_is_not_known_is_open_too() -> None:
    unseen = ValueSource(flag="--per_device_train_batch_size")
    settings = resolve_script(replace(HF_PARSER, micro_batch=unseen), ())
    assert settings.micro_batch is None
    assert settings.words_for("micro_batch", 2) == ("--per_device_train_batch_size", "2")


def switch(name: str, default: object = None, takes: Takes = Takes.STORE_TRUE) -> Option:
    assert default is None or isinstance(default, bool)
    return Option(flags=(f"--{name}",), dest=name, default=default, takes=takes)


ADAPTERS = ScriptFacts(
    path="train.py",
    convention=Convention.ACCELERATOR,
    integration=Integration.ACCELERATE,
    parser=ScriptParser(
        options=(
            switch("lora", default=False),
            switch("qlora", default=False),
            Option(flags=("--mixed",), dest="mixed", default="no"),
            Option(flags=("--kind",), dest="kind", default="sft"),
        )
    ),
    trains_adapters=True,
    adapters=ValueSource(value=False, flag="--lora"),
    quantized=ValueSource(value=False, flag="--qlora"),
    mixed_precision=ValueSource(value="no", flag="--mixed"),
)


def test_a_method_takes_the_words_of_its_conditions() -> None:
    settings = resolve_script(ADAPTERS, ())
    assert settings.words_for("method", Method.FULL) == ()
    assert settings.words_for("method", Method.LORA) == ("--lora",)
    assert settings.words_for("method", Method.QLORA) == ("--lora", "--qlora")
    kind = ValueSource(value="sft", flag="--kind", when=("lora", "adalora"))
    by_kind = resolve_script(replace(ADAPTERS, adapters=kind), ())
    assert by_kind.words_for("method", Method.LORA) == ("--kind", "lora")
    never = resolve_script(replace(ADAPTERS, adapters=ValueSource(value=True, line=3)), ())
    assert never.words_for("method", Method.FULL) is None


def test_accelerates_precision_has_one_word() -> None:
    settings = resolve_script(ADAPTERS, ())
    found = [settings.words_for("precision", precision) for precision in Precision]
    assert [("--mixed", "bf16"), ("--mixed", "fp16"), ("--mixed", "no")] == found


# Each with what argparse is told of it, and a value that its words can give.
OPTIONS: tuple[tuple[Option, dict[str, object], st.SearchStrategy[object]], ...] = (
    (
        Option(flags=("-b", "--batch"), dest="batch", reads=Reads.INT),
        {"type": int},
        st.integers(1, 99),
    ),
    (
        Option(flags=("--lr",), dest="lr", reads=Reads.FLOAT),
        {"type": float},
        st.integers(1, 99) | st.floats(1e-9, 1e9),
    ),
    (Option(flags=("--name",), dest="name"), {}, st.sampled_from(("a b", "x", "1"))),
    (
        Option(flags=("--wide",), dest="wide", reads=Reads.NONEMPTY),
        {"type": bool},
        st.booleans(),
    ),
    (switch("on"), {"action": "store_true"}, st.just(value=True)),
    (switch("off", takes=Takes.STORE_FALSE), {"action": "store_false"}, st.just(value=False)),
)


@pytest.mark.parametrize(
    ("own", "keywords", "values"), OPTIONS, ids=[own.dest for own, _, _ in OPTIONS]
)
@given(data=st.data())
def test_argparse_reads_what_was_written(
    own: Option,
    keywords: dict[str, object],
    values: st.SearchStrategy[object],
    data: st.DataObject,
) -> None:
    value = data.draw(values)
    words = write_words(ScriptParser(options=(own,)), own, value)
    assert words is not None
    parser = argparse.ArgumentParser()
    parser.add_argument(*own.flags, dest=own.dest, **keywords)  # type: ignore[arg-type]
    assert value == getattr(parser.parse_args(words), own.dest)


@pytest.mark.parametrize(
    ("own", "value"),
    [
        (OPTIONS[0][0], "a b"),
        (OPTIONS[1][0], True),
        (OPTIONS[2][0], 3),
        (OPTIONS[3][0], 3),
        (OPTIONS[4][0], False),
        (OPTIONS[5][0], True),
    ],
)
def test_no_words_give_an_option_a_value_that_it_cannot_read(own: Option, value: object) -> None:
    assert write_words(ScriptParser(options=(own,)), own, value) is None


def test_a_list_of_names_is_one_word_each_or_one_in_brackets() -> None:
    several = Option(flags=("--t",), dest="t", reads=Reads.WORDS, takes=Takes.WORDS)
    for_fire = replace(several, takes=Takes.VALUE)
    found = [write_words(ScriptParser(), each, "q_proj,v_proj") for each in (several, for_fire)]
    assert [("--t", "q_proj", "v_proj"), ("--t", "[q_proj,v_proj]")] == found


def test_an_accelerator_that_says_no_trains_in_fp32_unless_somebody_says_otherwise() -> None:
    precision = resolve_script(ADAPTERS, ()).precision
    assert precision is not None
    assert (Precision.FP32, State.OPEN) == (precision.value, precision.state)
    unsaid = resolve_script(replace(ADAPTERS, mixed_precision=ValueSource(flag="--mixed")), ())
    assert unsaid.precision is None
