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
from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import (
    Convention,
    Obstacle,
    ScriptFacts,
    ScriptValue,
    State,
    ValueSource,
)
from zerowiz.core.script.settings import ScriptRun, ScriptSettings, check_accelerator
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Integration, Method, Optimizer, Precision
from zerowiz.errors import PreflightError, ZerowizError

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


BATCH = "--per_device_train_batch_size"
# With a config file of TRL, and with options that nobody saw.
TRL = replace(HF_PARSER, parser=ScriptParser(options=HF_OPTIONS, config_flag="--config"))
INCOMPLETE = replace(HF_PARSER, parser=ScriptParser(options=HF_OPTIONS, complete=False))
WITH_LITERAL = ScriptFacts(
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
CKPT = Option(
    flags=("--ckpt",), dest="ckpt", default=False, takes=Takes.STORE_TRUE, reads=Reads.STR
)
NO_CKPT = Option(flags=("--no-ckpt",), dest="ckpt", default=False, takes=Takes.STORE_FALSE)


def with_switches(*options: Option) -> ScriptFacts:
    return ScriptFacts(
        path="t.py",
        convention=Convention.OWN_FLAG,
        integration=None,
        parser=ScriptParser(options=options),
        sources={"gradient_checkpointing": ValueSource(value=False, flag="--ckpt", line=3)},
    )


@pytest.mark.parametrize(
    ("facts", "name", "words", "expected"),
    [
        *(
            (HF_PARSER, "micro_batch", words, expected)
            for words, expected in (
                ((), 8),
                ((BATCH, "4"), 4),
                ((f"{BATCH}=4",), 4),
                (("--per-device-train-batch-size", "4"), 4),
                (("--per_device", "4"), 4),
                ((BATCH, "4", f"{BATCH}=2"), 2),
                (("--", BATCH, "4"), 8),
                ((BATCH, "four"), None),
                ((BATCH,), None),
                ((BATCH, "0"), None),
                # A file of arguments hides every option.
                (("args.json",), None),
            )
        ),
        # The booleans of HfArgumentParser.
        *(
            (HF_PARSER, "precision", words, expected)
            for words, expected in (
                ((), Precision.BF16),
                (("--bf16", "false"), Precision.FP32),
                (("--no_bf16",), Precision.FP32),
                (("--no-bf16", "--fp16"), Precision.FP16),
                (("--bf16", "--fp16", "False"), Precision.BF16),
                (("--bf16", "maybe"), None),
                (("args.json",), None),
            )
        ),
        (HF_PARSER, "gradient_checkpointing", ("--gradient_checkpointing", "true"), True),
        (HF_PARSER, "gradient_checkpointing", ("--activation-checkpointing",), True),
        (HF_PARSER, "optimizer", ("--optim", "adamw_bnb_8bit"), Optimizer.ADAMW_8BIT),
        # Nothing counts it.
        (HF_PARSER, "optimizer", ("--optim", "galore_adamw"), None),
        # TRL's file hides the defaults but not the words.
        (TRL, "micro_batch", ("--config", "c.yaml", "--optim", "sgd"), None),
        (TRL, "optimizer", ("--config", "c.yaml", "--optim", "sgd"), Optimizer.SGD),
        # An abbreviation could be one of an option that is unseen.
        (INCOMPLETE, "micro_batch", ("--per_device_train", "4"), None),
    ],
)
def test_words_after_the_script_override_its_default(
    facts: ScriptFacts, name: str, words: tuple[str, ...], expected: object
) -> None:
    said = getattr(ScriptRun(facts, words).settings, name)
    assert expected == (said.value if said else None)


@pytest.mark.parametrize(
    ("facts", "words", "name", "source"),
    [
        (HF_PARSER, (), "micro_batch", "the default of TrainingArguments"),
        (
            *(HF_PARSER, ("--per-device-train-batch-size=4",), "micro_batch"),
            "`--per-device-train-batch-size=4` after the script",
        ),
        (
            *(WITH_LITERAL, (), "attention"),
            "`from_pretrained(attn_implementation='eager')` in train.py line 12",
        ),
    ],
)
def test_a_setting_says_who_said_it(
    facts: ScriptFacts, words: tuple[str, ...], name: str, source: str
) -> None:
    assert source == getattr(ScriptRun(facts, words).settings, name).source


@pytest.mark.parametrize(
    ("facts", "words", "name", "value", "change"),
    [
        (HF_PARSER, (), "micro_batch", 2, f"put `{BATCH} 2` after train.py"),
        # By the name that the script knows.
        (
            *(HF_PARSER, ("--optim", "adamw_bnb_8bit"), "optimizer", Optimizer.ADAMW),
            "put `--optim adamw_torch` after train.py",
        ),
        (
            *(WITH_LITERAL, (), "attention", Attention.FLASH),
            'set `attn_implementation="flash_attention_2"` in train.py line 12',
        ),
        # A switch is turned round by its other half, or dropped.
        *(
            (with_switches(*options), words, "gradient_checkpointing", value, f"{change} t.py")
            for options, words, value, change in (
                ((CKPT,), ("--ckpt",), False, "remove `--ckpt` after"),
                ((CKPT,), (), True, "put `--ckpt` after"),
                ((CKPT, NO_CKPT), ("--ckpt",), False, "put `--no-ckpt` after"),
            )
        ),
    ],
)
def test_a_setting_says_how_to_change_it(
    facts: ScriptFacts, words: tuple[str, ...], name: str, value: object, change: str
) -> None:
    assert change == getattr(ScriptRun(facts, words).settings, name).change_to(value)


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
    ("facts", "words", "expected", "env"),
    [
        (HF_PARSER, ("--bf16",), ("--bf16", "--deepspeed", "ds_config_zero2.json"), {}),
        (HF_PARSER, ("--deepspeed", "./ds_config_zero2.json"), None, {}),
        (HF_PARSER, ("--deepspeed=ds_config_zero2.json",), None, {}),
        (HF_PARSER, ("a", "--", "b"), ("a", "--deepspeed", "ds_config_zero2.json", "--", "b"), {}),
        (
            *(ADD_CONFIG_ARGUMENTS, ("--lr", "1")),
            ("--lr", "1", "--deepspeed", "--deepspeed_config", "ds_config_zero2.json"),
            {},
        ),
        (
            *(ADD_CONFIG_ARGUMENTS, ("--deepspeed",)),
            ("--deepspeed", "--deepspeed_config", "ds_config_zero2.json"),
            {},
        ),
        (script(Convention.OWN_FLAG, own_flag="--ds"), (), ("--ds", "ds_config_zero2.json"), {}),
        (script(Convention.HF_LITERAL, literal_config="./ds_config_zero2.json"), (), None, {}),
        (script(Convention.CONFIG_LITERAL, literal_config="ds_config_zero2.json"), (), None, {}),
        # Where no word reaches, the environment does.
        (script(Convention.HF_IN_CODE), ("--epochs", "3"), None, ENVIRONMENT),
        (script(Convention.ACCELERATOR), (), None, ENVIRONMENT),
        (HF_PARSER, ("args.json",), None, ENVIRONMENT),
        (
            script(Convention.LIGHTNING),
            (),
            None,
            {"PL_DEEPSPEED_CONFIG_PATH": "ds_config_zero2.json"},
        ),
    ],
)
def test_the_config_reaches_the_script_by_its_own_convention(
    facts: ScriptFacts,
    words: tuple[str, ...],
    expected: tuple[str, ...] | None,
    env: dict[str, str],
) -> None:
    delivery = deliver(facts, words, "ds_config_zero2.json")
    assert (words if expected is None else expected) == delivery.script_args
    assert env == delivery.env


@pytest.mark.parametrize(
    ("facts", "words", "named", "hint"),
    [
        (HF_PARSER, ("--deepspeed", "mine.json"), "mine.json", "$config mine.json"),
        (HF_PARSER, ("--deepsp=mine.json",), "mine.json", "$config mine.json"),
        (
            *(ADD_CONFIG_ARGUMENTS, ("--deepspeed", "--deepspeed_config", "mine.json")),
            *("mine.json", "$config mine.json"),
        ),
        (
            script(
                Convention.HF_LITERAL, literal_config="ds_config_zero3_offload.json", config_line=12
            ),
            (),
            "train.py line 12 names `ds_config_zero3_offload.json`, but zerowiz writes ",
            "with `--force` where it exists",
        ),
        # The same name in another folder is another file.
        (
            script(Convention.CONFIG_LITERAL, literal_config="configs/ds_config_zero2.json"),
            *((), "configs/ds_config_zero2.json", ""),
        ),
    ],
)
def test_a_second_config_is_an_error_that_names_both(
    facts: ScriptFacts, words: tuple[str, ...], named: str, hint: str
) -> None:
    with pytest.raises(ZerowizError) as caught:
        deliver(facts, words, "ds_config_zero2.json")
    assert named in caught.value.message
    assert "ds_config_zero2.json`" in caught.value.message
    assert any(hint in each for each in caught.value.hints)


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


SAID = (BATCH, "4", "--fp16", "--no_bf16")
BY_KIND = ADAPTERS.with_sources(
    adapters=ValueSource(value="sft", flag="--kind", when=("lora", "adalora"))
)
ALWAYS_LORA = ADAPTERS.with_sources(adapters=ValueSource(value=True, line=3))
# What the code fixes stays, and what it leaves to a library too.
FIXED = HF_PARSER.with_sources(
    micro_batch=ValueSource(value=4, line=7, code="TrainingArguments(...=4)", keyword="x")
)
LEFT = HF_PARSER.with_sources(
    micro_batch=ValueSource(value=8, line=7, keyword="x", default_of="TrainingArguments")
)
UNSEEN = HF_PARSER.with_sources(micro_batch=ValueSource(flag=BATCH))


@pytest.mark.parametrize(
    ("facts", "said", "name", "value", "words"),
    [
        # Nobody says otherwise what was said.
        (HF_PARSER, SAID, "micro_batch", 2, None),
        (HF_PARSER, SAID, "precision", Precision.BF16, None),
        (HF_PARSER, SAID, "optimizer", Optimizer.SGD, ("--optim", "sgd")),
        (FIXED, (), "micro_batch", 2, None),
        (LEFT, (), "micro_batch", 2, None),
        # A default that is not known is open.
        (UNSEEN, (), "micro_batch", 2, (BATCH, "2")),
        (ADAPTERS, (), "method", Method.FULL, ()),
        (ADAPTERS, (), "method", Method.LORA, ("--lora",)),
        (ADAPTERS, (), "method", Method.QLORA, ("--lora", "--qlora")),
        (BY_KIND, (), "method", Method.LORA, ("--kind", "lora")),
        (ALWAYS_LORA, (), "method", Method.FULL, None),
        # Accelerate's precision has one word.
        (ADAPTERS, (), "precision", Precision.BF16, ("--mixed", "bf16")),
        (ADAPTERS, (), "precision", Precision.FP16, ("--mixed", "fp16")),
        (ADAPTERS, (), "precision", Precision.FP32, ("--mixed", "no")),
    ],
)
def test_words_are_added_where_nobody_said_otherwise(
    facts: ScriptFacts,
    said: tuple[str, ...],
    name: str,
    value: object,
    words: tuple[str, ...] | None,
) -> None:
    assert words == ScriptRun(facts, said).settings.words_for(name, value)


@pytest.mark.parametrize(("facts", "state"), [(FIXED, State.FIXED), (LEFT, State.OPEN)])
def test_what_the_code_fixes_is_not_open(facts: ScriptFacts, state: State) -> None:
    settings = ScriptRun(facts).settings
    assert settings.micro_batch is not None
    assert state is settings.micro_batch.state


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


NAMES = Option(flags=("--t",), dest="t", reads=Reads.WORDS, takes=Takes.WORDS)


@pytest.mark.parametrize(
    ("own", "value", "expected"),
    [
        # A value that an option cannot read has no words.
        (OPTIONS[0][0], "a b", None),
        (OPTIONS[1][0], True, None),
        (OPTIONS[2][0], 3, None),
        (OPTIONS[3][0], 3, None),
        (OPTIONS[4][0], False, None),
        (OPTIONS[5][0], True, None),
        # A list of names is one word each, or one in brackets, as Fire reads it.
        (NAMES, "q_proj,v_proj", ("--t", "q_proj", "v_proj")),
        (replace(NAMES, takes=Takes.VALUE), "q_proj,v_proj", ("--t", "[q_proj,v_proj]")),
    ],
)
def test_a_value_is_written_as_its_option_reads_it(
    own: Option, value: object, expected: tuple[str, ...] | None
) -> None:
    assert expected == write_words(ScriptParser(options=(own,)), own, value)


def test_an_accelerator_that_says_no_trains_in_fp32_unless_somebody_says_otherwise() -> None:
    precision = ScriptRun(ADAPTERS, ()).settings.precision
    assert precision is not None
    assert (Precision.FP32, State.OPEN) == (precision.value, precision.state)
    unsaid = ScriptRun(
        ADAPTERS.with_sources(mixed_precision=ValueSource(flag="--mixed")), ()
    ).settings
    assert unsaid.precision is None
