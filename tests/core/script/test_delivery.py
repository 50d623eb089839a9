"""Hold the settling and the delivery to what argparse and the libraries really do."""

import argparse
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.types import Accelerator
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.script.arguments import (
    Option,
    Reads,
    ScriptParser,
    Takes,
    field_options,
    write_words,
)
from zerowiz.core.script.bindings import ScriptValue, State
from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts, ValueSource
from zerowiz.core.script.settings import ScriptRun, ScriptSettings, check_accelerator
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Integration, Method, Optimizer, Precision
from zerowiz.errors import PreflightError, UsageError, ZerowizError

HF_OPTIONS = (
    *field_options("per_device_train_batch_size", Reads.INT, 8),
    *field_options("gradient_checkpointing", Reads.TRUTH, default=False),
    *field_options("bf16", Reads.TRUTH, default=True, line=9),
    *field_options("fp16", Reads.TRUTH, default=False),
    *field_options("optim", Reads.STR, "adamw_torch_fused"),
    *field_options("deepspeed", Reads.STR, None),
)


def hf(name: str, value: object) -> ValueSource:
    assert value is None or isinstance(value, bool | int | str)
    return ValueSource(value=value, flag=f"--{name}", default_of="TrainingArguments")


HF_PARSER = ScriptFacts(
    path="train.py",
    convention=Convention.HF_PARSER,
    integration=Integration.HF,
    parser=ScriptParser(options=HF_OPTIONS, args_file_suffixes=(".json",)),
    sources={
        "micro_batch": hf("per_device_train_batch_size", 8),
        "gradient_checkpointing": hf("gradient_checkpointing", value=False),
        "bf16": ValueSource(value=True, flag="--bf16", line=9),
        "fp16": hf("fp16", value=False),
        "optimizer": hf("optim", "adamw_torch_fused"),
    },
)
ADD_CONFIG_ARGUMENTS = ScriptFacts(
    path="train.py",
    convention=Convention.ADD_CONFIG_ARGUMENTS,
    integration=Integration.DEEPSPEED,
    parser=ScriptParser(
        options=(
            Option(flags=("--deepspeed",), dest="deepspeed", takes=Takes.STORE_TRUE),
            Option(flags=("--deepspeed_config",), dest="deepspeed_config"),
        )
    ),
)


def script(convention: Convention, **more: str | int | Obstacle) -> ScriptFacts:
    facts: dict[str, object] = {"path": "train.py", "convention": convention, "integration": None}
    return ScriptFacts(**(facts | more))  # type: ignore[arg-type] # a table of one test each


def micro_batch(*words: str) -> int | None:
    said = ScriptRun(HF_PARSER, words).settings.micro_batch
    return said.value if said else None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 8),
        (("--per_device_train_batch_size", "4"), 4),
        (("--per_device_train_batch_size=4",), 4),
        (("--per-device-train-batch-size", "4"), 4),
        (("--per_device", "4"), 4),
        (("--per_device_train_batch_size", "4", "--per_device_train_batch_size=2"), 2),
        (("--", "--per_device_train_batch_size", "4"), 8),
        (("--per_device_train_batch_size", "four"), None),
        (("--per_device_train_batch_size",), None),
        (("--per_device_train_batch_size", "0"), None),
    ],
)
def test_words_after_the_script_override_its_default(
    words: tuple[str, ...], expected: int | None
) -> None:
    assert expected == micro_batch(*words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), Precision.BF16),
        (("--bf16", "false"), Precision.FP32),
        (("--no_bf16",), Precision.FP32),
        (("--no-bf16", "--fp16"), Precision.FP16),
        (("--bf16", "--fp16", "False"), Precision.BF16),
        (("--bf16", "maybe"), None),
    ],
)
def test_precision_follows_the_booleans_of_hf_argument_parser(
    words: tuple[str, ...], expected: Precision | None
) -> None:
    said = ScriptRun(HF_PARSER, words).settings.precision
    assert expected == (said.value if said else None)


def test_checkpointing_has_two_names_and_one_value() -> None:
    old = ScriptRun(HF_PARSER, ("--gradient_checkpointing", "true")).settings.gradient_checkpointing
    new = ScriptRun(HF_PARSER, ("--activation-checkpointing",)).settings.gradient_checkpointing
    assert old is not None
    assert new is not None
    assert (old.value, new.value) == (True, True)


def test_a_setting_says_who_said_it_and_how_to_change_it() -> None:
    by_default = ScriptRun(HF_PARSER, ()).settings.micro_batch
    by_word = ScriptRun(HF_PARSER, ("--per-device-train-batch-size=4",)).settings.micro_batch
    assert by_default is not None
    assert by_word is not None
    assert by_default.source == "the default of TrainingArguments"
    assert by_word.source == "`--per-device-train-batch-size=4` after the script"
    assert by_word.change_to(2) == "put `--per_device_train_batch_size 2` after train.py"
    assert (by_default.state, by_word.state) == (State.OPEN, State.SAID)


def test_an_optimizer_is_changed_to_the_name_that_the_script_knows() -> None:
    said = ScriptRun(HF_PARSER, ("--optim", "adamw_bnb_8bit")).settings.optimizer
    assert said is not None
    assert said.value is Optimizer.ADAMW_8BIT
    assert said.change_to(Optimizer.ADAMW) == "put `--optim adamw_torch` after train.py"


def test_an_optimizer_that_the_ledger_does_not_know_is_unseen() -> None:
    assert ScriptRun(HF_PARSER, ("--optim", "galore_adamw")).settings.optimizer is None


def test_a_literal_names_its_line_and_keyword() -> None:
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_IN_CODE,
        integration=Integration.HF,
        sources={
            "attention": ValueSource(
                value="eager",
                line=12,
                code="from_pretrained(attn_implementation='eager')",
                keyword="attn_implementation",
            )
        },
    )
    said = ScriptRun(facts, ()).settings.attention
    assert said is not None
    assert said.source == "`from_pretrained(attn_implementation='eager')` in train.py line 12"
    assert (
        said.change_to(Attention.FLASH)
        == 'set `attn_implementation="flash_attention_2"` in train.py line 12'
    )


def test_a_switch_is_turned_round_by_its_other_half_or_dropped() -> None:
    on = Option(
        flags=("--ckpt",), dest="ckpt", default=False, takes=Takes.STORE_TRUE, reads=Reads.STR
    )
    off = Option(flags=("--no-ckpt",), dest="ckpt", default=False, takes=Takes.STORE_FALSE)
    changes = []
    for options, words in (((on,), ("--ckpt",)), ((on,), ()), ((on, off), ("--ckpt",))):
        facts = ScriptFacts(
            path="t.py",
            convention=Convention.OWN_FLAG,
            integration=None,
            parser=ScriptParser(options=options),
            sources={"gradient_checkpointing": ValueSource(value=False, flag="--ckpt", line=3)},
        )
        said = ScriptRun(facts, words).settings.gradient_checkpointing
        assert said is not None
        changes.append(said.change)
    assert changes == [
        "remove `--ckpt` after t.py",
        "put `--ckpt` after t.py",
        "put `--no-ckpt` after t.py",
    ]


def test_an_arguments_file_hides_every_option() -> None:
    settings = ScriptRun(HF_PARSER, ("args.json",)).settings
    assert (settings.micro_batch, settings.precision) == (None, None)


def test_a_trl_config_file_hides_the_defaults_but_not_the_words() -> None:
    facts = ScriptFacts(
        path="t.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        parser=ScriptParser(options=HF_OPTIONS, config_flag="--config"),
        sources={
            "micro_batch": hf("per_device_train_batch_size", 8),
            "optimizer": hf("optim", "sgd"),
        },
    )
    settings = ScriptRun(facts, ("--config", "c.yaml", "--optim", "sgd")).settings
    assert settings.micro_batch is None
    assert settings.optimizer is not None


def test_an_abbreviation_is_not_guessed_where_an_option_is_unseen() -> None:
    facts = ScriptFacts(
        path="t.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        parser=ScriptParser(options=HF_OPTIONS, complete=False),
        sources={"micro_batch": hf("per_device_train_batch_size", 8)},
    )
    assert ScriptRun(facts, ("--per_device_train", "4")).settings.micro_batch is None


def test_the_args_file_beside_the_script_speaks_before_the_command_line() -> None:
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        parser=ScriptParser(options=HF_OPTIONS),
        args_file="train.args",
        args_file_words=("--per_device_train_batch_size", "2", "--optim", "sgd"),
        sources={
            "micro_batch": hf("per_device_train_batch_size", 8),
            "optimizer": hf("optim", "adamw_torch"),
        },
    )
    settings = ScriptRun(facts, ("--per_device_train_batch_size", "3")).settings
    assert settings.micro_batch is not None
    assert settings.optimizer is not None
    assert settings.micro_batch.source == "`--per_device_train_batch_size 3` after the script"
    assert settings.optimizer.source == "`--optim sgd` in train.args"


WORDS = st.sampled_from(
    [
        "--batch_size",
        "--batch_size=3",
        "--batch",
        "-b",
        "-b7",
        "-b=9",
        "--ckpt",
        "--ck",
        "--no-ckpt",
        "--length",
        "--length=-5",
        "1",
        "2",
        "-4",
        "x",
        "--other",
        "--names",
        "--",
    ]
)


@given(st.lists(WORDS, max_size=6))
def test_words_mean_what_argparse_makes_of_them(words: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--batch_size", "-b", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--ckpt", action="store_true")
    parser.add_argument("--no-ckpt", action="store_false", dest="ckpt")
    parser.add_argument("--other", nargs="?")
    parser.add_argument("--names", nargs="+", default=["a"])
    parser.add_argument("rest", nargs="*")
    try:
        namespace, _ = parser.parse_known_args(words)
    except (argparse.ArgumentError, SystemExit):
        return  # the script refuses these words itself
    facts = ScriptFacts(
        path="t.py",
        convention=Convention.UNKNOWN,
        integration=None,
        parser=ScriptParser(
            options=(
                Option(flags=("--batch_size", "-b"), dest="batch_size", default=8, reads=Reads.INT),
                Option(flags=("--length",), dest="length", default=512, reads=Reads.INT),
                Option(flags=("--ckpt",), dest="ckpt", takes=Takes.STORE_TRUE),
                Option(flags=("--no-ckpt",), dest="ckpt", takes=Takes.STORE_FALSE),
                Option(flags=("--other",), dest="other", takes=Takes.PERHAPS),
                Option(
                    flags=("--names",),
                    dest="names",
                    default="a",
                    takes=Takes.WORDS,
                    reads=Reads.WORDS,
                ),
            )
        ),
        sources={
            "micro_batch": ValueSource(value=8, flag="--batch_size"),
            "sequence_tokens": ValueSource(value=512, flag="--length"),
            "gradient_checkpointing": ValueSource(value=False, flag="--ckpt"),
            "lora_target_modules": ValueSource(value="a", flag="--names"),
        },
    )
    settings = ScriptRun(facts, tuple(words)).settings
    assert settings.lora_target_modules is not None
    assert ",".join(namespace.names) == settings.lora_target_modules.value
    batch, length = settings.micro_batch, settings.sequence_tokens
    assert (namespace.batch_size if namespace.batch_size > 0 else None) == (batch and batch.value)
    assert (namespace.length if namespace.length > 0 else None) == (length and length.value)
    assert settings.gradient_checkpointing is not None
    assert namespace.ckpt == settings.gradient_checkpointing.value


ENVIRONMENT = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds_config_zero2.json",
}


@pytest.mark.parametrize(
    ("facts", "words", "expected"),
    [
        (HF_PARSER, ("--bf16",), ("--bf16", "--deepspeed", "ds_config_zero2.json")),
        (HF_PARSER, ("--deepspeed", "./ds_config_zero2.json"), None),
        (HF_PARSER, ("--deepspeed=ds_config_zero2.json",), None),
        (HF_PARSER, ("a", "--", "b"), ("a", "--deepspeed", "ds_config_zero2.json", "--", "b")),
        (
            ADD_CONFIG_ARGUMENTS,
            ("--lr", "1"),
            ("--lr", "1", "--deepspeed", "--deepspeed_config", "ds_config_zero2.json"),
        ),
        (
            ADD_CONFIG_ARGUMENTS,
            ("--deepspeed",),
            ("--deepspeed", "--deepspeed_config", "ds_config_zero2.json"),
        ),
        (script(Convention.OWN_FLAG, own_flag="--ds"), (), ("--ds", "ds_config_zero2.json")),
        (script(Convention.HF_LITERAL, literal_config="./ds_config_zero2.json"), (), None),
        (script(Convention.CONFIG_LITERAL, literal_config="ds_config_zero2.json"), (), None),
    ],
)
def test_the_config_reaches_the_script_by_its_own_convention(
    facts: ScriptFacts, words: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    delivery = deliver(facts, words, "ds_config_zero2.json")
    assert (words if expected is None else expected) == delivery.script_args
    assert delivery.env == {}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (script(Convention.HF_IN_CODE), ("--epochs", "3")),
        (script(Convention.ACCELERATOR), ()),
        (HF_PARSER, ("args.json",)),
    ],
)
def test_where_no_word_reaches_the_environment_does(
    facts: ScriptFacts, words: tuple[str, ...]
) -> None:
    delivery = deliver(facts, words, "ds_config_zero2.json")
    assert (words, ENVIRONMENT) == (delivery.script_args, delivery.env)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (HF_PARSER, ("--deepspeed", "mine.json")),
        (HF_PARSER, ("--deepsp=mine.json",)),
        (ADD_CONFIG_ARGUMENTS, ("--deepspeed", "--deepspeed_config", "mine.json")),
    ],
)
def test_a_second_config_is_an_error_that_names_both(
    facts: ScriptFacts, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        deliver(facts, words, "ds_config_zero2.json")
    assert "mine.json" in caught.value.message
    assert "ds_config_zero2.json" in caught.value.message
    assert "$config mine.json" in caught.value.hints[0]


def test_a_literal_of_another_name_is_refused_with_the_stage_that_writes_it() -> None:
    facts = script(
        Convention.HF_LITERAL, literal_config="ds_config_zero3_offload.json", config_line=12
    )
    with pytest.raises(ZerowizError) as caught:
        deliver(facts, (), "ds_config_zero2.json")
    assert (
        caught.value.message
        == "train.py line 12 names `ds_config_zero3_offload.json`, but zerowiz writes `ds_config_zero2.json`"
    )
    choose = "or choose the strategy of that file: `$stage 3 $offload all`"
    assert choose in caught.value.hints


def test_the_same_name_in_another_folder_is_another_file() -> None:
    facts = script(Convention.CONFIG_LITERAL, literal_config="configs/ds_config_zero2.json")
    with pytest.raises(ZerowizError, match=r"configs/ds_config_zero2\.json"):
        deliver(facts, (), "ds_config_zero2.json")


@pytest.mark.parametrize("obstacle", list(Obstacle))
def test_every_obstacle_is_refused_in_one_line_with_a_line_to_change(obstacle: Obstacle) -> None:
    with pytest.raises(PreflightError) as caught:
        deliver(script(Convention.UNKNOWN, obstacle=obstacle, config_line=7), (), "ds.json")
    assert caught.value.message.startswith("zerowiz cannot pass a config to train.py: ")
    assert caught.value.hints
    said = (caught.value.message, *caught.value.hints)
    assert not any("\n" in line or "{" in line for line in said)


@pytest.mark.parametrize(
    ("use_cpu", "on", "refused"),
    [
        (False, Accelerator.CPU, True),
        (True, Accelerator.CPU, False),
        (None, Accelerator.CPU, False),
        (False, Accelerator.CUDA, False),
    ],
)
def test_a_trainer_that_was_not_told_of_the_cpu_is_refused_there(
    use_cpu: bool | None, on: Accelerator, *, refused: bool
) -> None:
    said = ScriptValue(value=use_cpu, source="x", change="say {value}", state=State.FIXED)
    script = ScriptRun(HF_PARSER)
    vars(script)["settings"] = ScriptSettings(values={} if use_cpu is None else {"use_cpu": said})
    expectation = pytest.raises(PreflightError) if refused else nullcontext()
    with expectation:
        check_accelerator(script, on)


def test_the_layers_that_nobody_names_are_those_of_the_installed_peft() -> None:
    constants = pytest.importorskip("peft.utils.constants")
    table = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    named = {family: set(table.get(family, ())) for family in FAMILIES}
    assert named == {name: set(family.default_lora_targets) for name, family in FAMILIES.items()}


@pytest.mark.parametrize(
    ("words", "expected", "by"),
    [
        ((), Method.FULL, "the default of `--lora` in train.py line 4"),
        (("--lora",), Method.LORA, "`--lora` after the script"),
        (("--lora", "--bits", "4"), Method.QLORA, "`--bits 4` after the script"),
        (("--bits", "4"), Method.FULL, "the default of `--lora` in train.py line 4"),
        (("--lora", "--bits", "four"), None, None),
    ],
)
def test_the_method_follows_two_conditions(
    words: tuple[str, ...], expected: Method | None, by: str | None
) -> None:
    on = Option(flags=("--lora",), dest="lora", default=False, takes=Takes.STORE_TRUE, line=4)
    bits = Option(flags=("--bits",), dest="bits", default=16, reads=Reads.INT, line=5)
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_IN_CODE,
        integration=Integration.HF,
        parser=ScriptParser(options=(on, bits)),
        trains_adapters=True,
        sources={
            "adapters": ValueSource(value=False, flag="--lora", line=4),
            "quantized": ValueSource(value=16, flag="--bits", line=5, when=(4,)),
        },
    )
    said = ScriptRun(facts, words).settings.method
    assert (expected, by) == ((said.value, said.source) if said else (None, None))


def test_what_the_config_decides_is_not_unseen() -> None:
    assert (
        frozenset()
        == ScriptRun(
            ScriptFacts(
                path="train.py",
                convention=Convention.ADD_CONFIG_ARGUMENTS,
                integration=Integration.DEEPSPEED,
                sources={
                    "micro_batch": ValueSource(from_config=True),
                    "accumulation_steps": ValueSource(from_config=True),
                    "gradient_checkpointing": ValueSource(value=False, line=1),
                    "sequence_tokens": ValueSource(value=8, line=1),
                },
            ),
            (),
        ).settings.unseen
    )


# The words that zerowiz adds give a script the value that was settled, and nothing else.


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
    words = ScriptRun(HF_PARSER, ()).settings.words_for(name, value)
    assert words is not None
    setting = getattr(ScriptRun(HF_PARSER, words).settings, name)
    assert value == setting.value
    # bf16 is a default of this script already.
    by_words = value is not Precision.BF16
    assert setting.state is (State.SAID if by_words else State.OPEN)
    assert bool(words) == by_words


def test_nobody_says_otherwise_what_was_said() -> None:
    said = ScriptRun(
        HF_PARSER, ("--per_device_train_batch_size", "4", "--fp16", "--no_bf16")
    ).settings
    assert said.words_for("micro_batch", 2) is None
    assert said.words_for("precision", Precision.BF16) is None
    asked = said.words_for("optimizer", Optimizer.SGD)
    assert asked == ("--optim", "sgd")


def test_what_the_code_fixes_stays_and_what_it_leaves_to_a_library_too() -> None:
    fixed = ValueSource(value=4, line=7, code="TrainingArguments(...=4)", keyword="x")
    left = ValueSource(value=8, line=7, keyword="x", default_of="TrainingArguments")
    for binding, state in ((fixed, State.FIXED), (left, State.OPEN)):
        settings = ScriptRun(HF_PARSER.with_sources(micro_batch=binding), ()).settings
        assert settings.micro_batch is not None
        assert state is settings.micro_batch.state
        assert settings.words_for("micro_batch", 2) is None


def test_a_default_that_is_not_known_is_open_too() -> None:
    unseen = ValueSource(flag="--per_device_train_batch_size")
    settings = ScriptRun(HF_PARSER.with_sources(micro_batch=unseen), ()).settings
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
    sources={
        "adapters": ValueSource(value=False, flag="--lora"),
        "quantized": ValueSource(value=False, flag="--qlora"),
        "mixed_precision": ValueSource(value="no", flag="--mixed"),
    },
)


def test_a_method_takes_the_words_of_its_conditions() -> None:
    settings = ScriptRun(ADAPTERS, ()).settings
    assert settings.words_for("method", Method.FULL) == ()
    assert settings.words_for("method", Method.LORA) == ("--lora",)
    assert settings.words_for("method", Method.QLORA) == ("--lora", "--qlora")
    kind = ValueSource(value="sft", flag="--kind", when=("lora", "adalora"))
    by_kind = ScriptRun(ADAPTERS.with_sources(adapters=kind), ()).settings
    assert by_kind.words_for("method", Method.LORA) == ("--kind", "lora")
    never = ScriptRun(ADAPTERS.with_sources(adapters=ValueSource(value=True, line=3)), ()).settings
    assert never.words_for("method", Method.FULL) is None


def test_accelerates_precision_has_one_word() -> None:
    settings = ScriptRun(ADAPTERS, ()).settings
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
    precision = ScriptRun(ADAPTERS, ()).settings.precision
    assert precision is not None
    assert (Precision.FP32, State.OPEN) == (precision.value, precision.state)
    unsaid = ScriptRun(
        ADAPTERS.with_sources(mixed_precision=ValueSource(flag="--mixed")), ()
    ).settings
    assert unsaid.precision is None
