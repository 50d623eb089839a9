"""The values of a settings file are said as words are, and reach the script by a copy of the file."""

import json
from collections.abc import Mapping

import msgspec.yaml
import pytest

from zerowiz.core.script.arguments import (
    Reads,
    ScriptParser,
    SettingsFile,
    field_options,
    render_values,
)
from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import (
    Convention,
    ScriptFacts,
    ScriptValue,
    State,
    ValueSource,
    read_said,
)
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Precision
from zerowiz.errors import UsageError

OPTIONS = (
    *field_options("per_device_train_batch_size", Reads.INT, 8),
    *field_options("gradient_accumulation_steps", Reads.INT, 1),
    *field_options("bf16", Reads.TRUTH, default=False),
    *field_options("fp16", Reads.TRUTH, default=False),
    *field_options("max_length", Reads.INT, 1024),
    *field_options("lora_target_modules", Reads.WORDS, None),
    *field_options("model_name_or_path", Reads.STR, None),
    *field_options("deepspeed", Reads.STR, None),
)
DS = "ds_config_zero2.json"


def hf(name: str, value: int | None = None) -> ValueSource:
    return ValueSource(value=value, flag=f"--{name}", default_of="TrainingArguments")


def facts(path: str, values: Mapping[str, object], *, is_whole: bool = True) -> ScriptFacts:
    return ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        parser=ScriptParser(
            options=OPTIONS, args_file_suffixes=(".json", ".yaml"), config_flag="--config"
        ),
        settings_file=SettingsFile(path=path, values=values, is_whole=is_whole),
        sources={
            "micro_batch": hf("per_device_train_batch_size", 8),
            "accumulation_steps": hf("gradient_accumulation_steps", 1),
            "bf16": ValueSource(value=False, flag="--bf16", default_of="TrainingArguments"),
            "fp16": ValueSource(value=False, flag="--fp16", default_of="TrainingArguments"),
            "sequence_tokens": hf("max_length", 1024),
            "lora_target_modules": hf("lora_target_modules"),
            "model": hf("model_name_or_path"),
        },
    )


def shown(setting: ScriptValue[int] | None) -> tuple[int, State, str, str]:
    assert setting is not None
    return setting.value, setting.state, setting.source, setting.change_to(4)


def test_the_values_of_a_file_are_said_and_what_it_leaves_out_is_open() -> None:
    values = {"per_device_train_batch_size": 2, "bf16": True, "lora_target_modules": ["a", "b"]}
    settings = ScriptRun(facts("run/args.json", values), ("run/args.json",)).settings
    key = "`per_device_train_batch_size`"
    assert (2, State.SAID, f"{key} in run/args.json", f"set {key} to 4 in run/args.json") == shown(
        settings.micro_batch
    )
    for name, value, state in (
        ("precision", Precision.BF16, State.SAID),
        ("lora_target_modules", "a,b", State.SAID),
        ("accumulation_steps", 1, State.OPEN),
    ):
        setting = getattr(settings, name)
        assert (value, state) == (setting.value, setting.state)
    assert settings.words_for("micro_batch", 4) is None
    assert ("--gradient_accumulation_steps", "4") == settings.words_for("accumulation_steps", 4)


def test_a_file_of_defaults_gives_way_to_words_and_reads_texts_as_words() -> None:
    values = {"per_device_train_batch_size": "2", "max_seq_length": 512, "env": {"A": "b"}}
    words = ("--config", "c.yaml", "--per_device_train_batch_size", "3")
    read = facts("c.yaml", values, is_whole=False)
    assert 2 == shown(ScriptRun(read, words[:2]).settings.micro_batch)[0]
    after = "`--per_device_train_batch_size 3` after the script"
    assert after == shown(ScriptRun(read, words).settings.micro_batch)[2]
    assert "`max_seq_length` in c.yaml" == shown(ScriptRun(read, words).settings.sequence_tokens)[2]


@pytest.mark.parametrize(
    ("key", "value", "is_whole", "expected"),
    [
        ("per_device_train_batch_size", "4", True, '"4", and not a whole number'),
        ("per_device_train_batch_size", 4.5, False, "4.5, and not a whole number"),
        ("per_device_train_batch_size", True, True, "true, and not a whole number"),
        ("bf16", "true", True, '"true", and not true or false'),
        ("bf16", "maybe", False, '"maybe", and not true or false'),
        ("lora_target_modules", [1], True, "[1], and not a list of names"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_its_key(
    key: str, value: object, is_whole: bool, expected: str
) -> None:
    words = ("a.json",) if is_whole else ("--config", "a.json")
    with pytest.raises(UsageError) as caught:
        assert ScriptRun(facts("a.json", {key: value}, is_whole=is_whole), words).settings
    assert f"`{key}` in a.json is {expected}" == caught.value.message


def test_a_trainer_that_gets_its_config_by_the_environment_is_told_its_steps() -> None:
    read = replace(facts("a.json", {}), convention=Convention.ACCELERATOR)
    words = ScriptRun(read, ("a.json",)).settings.words_for("accumulation_steps", 4)
    assert ("--gradient_accumulation_steps", "4") == words


def test_neither_a_switch_in_the_place_of_a_text_nor_null_says_a_setting() -> None:
    read = facts("a.json", {"deepspeed": False, "model_name_or_path": True})
    said = read_said(read, ("a.json",))
    assert (False, True) == (said["deepspeed"].value, said["model_name_or_path"].value)
    assert ScriptRun(read, ("a.json",)).settings.model is None
    nulls = {"per_device_train_batch_size": None, "model_name_or_path": None}
    settings = ScriptRun(facts("a.json", nulls), ("a.json",)).settings
    assert (None, None) == (settings.micro_batch, settings.model)


COPY = "out/a.ds_config_zero2.json"
SAID = {"per_device_train_batch_size": 2, "max_seq_length": 512, "deepspeed": None}


@pytest.mark.parametrize(
    ("convention", "values", "words", "copied", "handed"),
    [
        (
            *(Convention.HF_PARSER, SAID),
            (
                *("--gradient_accumulation_steps", "4", "--bf16", "True", "--max_length=256"),
                *("--lora_target_modules", "a", "b"),
            ),
            {
                "per_device_train_batch_size": 2,
                "max_seq_length": 256,
                "deepspeed": DS,
                "gradient_accumulation_steps": 4,
                "bf16": True,
                "lora_target_modules": ["a", "b"],
            },
            (COPY,),
        ),
        # Words that are not understood stay where they are.
        (
            *(Convention.HF_PARSER, {}, ("--bf16", "True", "--wandb_project", "x")),
            {"bf16": True, "deepspeed": DS},
            (COPY, "--wandb_project", "x"),
        ),
        # However the config reaches the script.
        *(
            (convention, {}, ("--bf16", "True"), {"bf16": True}, (COPY,))
            for convention in (Convention.HF_IN_CODE, Convention.NONE)
        ),
        # A file that says it all is handed over as it is.
        (
            *(Convention.HF_PARSER, {"bf16": True, "deepspeed": f"./{DS}"}, ("--bf16", "True")),
            *(None, ("a.json",)),
        ),
    ],
)
def test_what_is_settled_goes_into_a_copy_that_is_handed_over_instead(
    convention: Convention,
    values: Mapping[str, object],
    words: tuple[str, ...],
    copied: Mapping[str, object] | None,
    handed: tuple[str, ...],
) -> None:
    read = replace(facts("a.json", values), convention=convention)
    delivery = deliver(read, ("a.json", *words), DS, "out")
    assert handed == delivery.script_args
    assert (convention is Convention.HF_IN_CODE) is bool(delivery.env)
    made = delivery.copy
    assert (copied and (COPY, "a.json", copied)) == (made and (made.path, made.of, made.values))


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(("named", "hints"), [("mine.json", 2), ({"bf16": {}}, 1)])
def test_another_config_in_the_file_is_refused_by_its_name(
    is_whole: bool, named: object, hints: int
) -> None:
    words = ("a.yaml",) if is_whole else ("--config", "a.yaml")
    with pytest.raises(UsageError) as caught:
        deliver(facts("a.yaml", {"deepspeed": named}, is_whole=is_whole), words, DS)
    expected = f"train.py would get two configs: `deepspeed` in a.yaml, and `{DS}`"
    assert expected == caught.value.message
    assert hints == len(caught.value.hints)


def test_a_file_of_defaults_needs_no_copy() -> None:
    words = ("--config", "c.yaml", "--bf16", "True")
    for named, added in (({}, ("--deepspeed", DS)), ({"deepspeed": DS}, ())):
        delivery = deliver(facts("c.yaml", named, is_whole=False), words, DS)
        assert delivery.copy is None
        assert (*words, *added) == delivery.script_args


def test_jobs_of_one_folder_have_copies_of_their_own() -> None:
    copies = {
        delivery.copy.path
        for path in ("a.json", "x/a.json", "../y/a.json", "/z/a.json", "a.yaml")
        for config in (DS, "ds_config_zero3.json", "own/mine.json")
        if (delivery := deliver(facts(path, {}), (path,), config)).copy is not None
    }
    assert 15 == len(copies)
    assert {"x-a.ds_config_zero2.json", "z-a.mine.json"} <= copies


VALUES = {"lr": 1e-05, "name": 'é "q": #', "no": "no", "n": None, "rows": [1, {"a": True}], "x": {}}


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_a_copy_reads_back_as_it_was(suffix: str) -> None:
    text = render_values(f"a{suffix}", VALUES)
    assert VALUES == (json.loads(text) if suffix == ".json" else msgspec.yaml.decode(text))


@pytest.mark.parametrize("words", [("--config=c.yaml",), ("--bf16", "--config")])
def test_a_flag_without_a_file_that_trl_would_read_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        facts("c.yaml", {}).parser.settings_file(words)
