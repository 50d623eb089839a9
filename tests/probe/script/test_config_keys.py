"""What a script asks its config for, and sets in it, between the file and the engine."""

import pytest
from probe.reading import HF_CALL, facts_of

from zerowiz.core.script.facts import UNSEEN, KeyUse, ScriptFacts
from zerowiz.core.script.settings import resolve_script
from zerowiz.probe.script.read import parse_script

HEAD = """import argparse, json, deepspeed, torch
p = argparse.ArgumentParser()
p.add_argument("--ds")
p.add_argument("--batch", type=int, default=4)
p.add_argument("--steps", type=int, default=2)
p.add_argument("--on", action="store_true")
args = p.parse_args()
cfg = json.load(open(args.ds))
"""
TAIL = "\ndeepspeed.initialize(model=model, config=cfg)\n"


def read(lines: str) -> ScriptFacts:
    return parse_script(HEAD + lines + TAIL, "train.py")


def uses(lines: str) -> list[tuple[str, ...]]:
    return [
        ("set" if key.sets else "get", *key.keys, *(() if key.all_seen else ("?",)))
        for key in read(lines).config_keys
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", []),
        ("lr = cfg['optimizer']['params']['lr']", [("get", "optimizer", "params", "lr")]),
        ("lr = cfg.get('optimizer')", []),
        ("cfg['zero_optimization']['stage'] = 3", [("set", "zero_optimization", "stage")]),
        ("cfg['scheduler'] = {}", [("set", "scheduler")]),
        ("cfg[name] = 3", [("set", "?")]),
        ("cfg['bf16'][name] = 3", [("set", "bf16", "?")]),
        ("cfg['wandb']['x'] += 1", [("set", "wandb", "x")]),
        ("cfg.update(bf16={}, fp16={})", [("set", "bf16"), ("set", "fp16")]),
        ("cfg.update({'bf16': {}})", [("set", "bf16")]),
        ("cfg.update(more)", [("set", "?")]),
        (
            "cfg['zero_optimization'].update(stage=3)",
            [("get", "zero_optimization"), ("set", "zero_optimization", "stage")],
        ),
        ("cfg.pop('bf16', None)", [("set", "bf16")]),
        ("del cfg['bf16']", [("set", "bf16")]),
        ("def f(c):\n    c['bf16'] = {}\nf(cfg)", [("set", "bf16")]),
        ("def f(x, c):\n    c['bf16'] = {}\nf(1, c=cfg)", [("set", "bf16")]),
        # Another dict is no config.
        ("other = {}\nother['bf16'] = 1", []),
        ("def f(cfg):\n    cfg['bf16'] = {}\nf({})", []),
        # The same file, read once more.
        ("x = json.load(open(args.ds))\nx['a'] = 1\ny = x['b']", [("get", "b")]),
        ("y = json.load(open(args.ds))['b']", [("get", "b")]),
        ("y = json.load(open('other.json'))['b']", []),
    ],
)
def test_the_keys_that_a_script_uses_are_found(lines: str, expected: list[tuple[str, ...]]) -> None:
    assert expected == uses(lines)


@pytest.mark.parametrize(
    ("lines", "flags"),
    [
        ("x = cfg['a']", []),
        ("if args.on:\n    x = cfg['a']", ["--on"]),
        ("if big:\n    x = cfg['a']", [None]),
        ("try:\n    x = cfg['a']\nexcept KeyError:\n    pass", [None]),
        ("x = 'a' in cfg and cfg['a']", [None]),
        ("def f():\n    x = cfg['a']\nf()", []),
        ("def f():\n    x = cfg['a']\nif args.on:\n    f()", ["--on"]),
        ("def f():\n    x = cfg['a']", [None]),
        ("def f():\n    x = cfg['a']\ndef main():\n    f()\nmain()", []),
    ],
)
def test_a_key_is_used_under_the_conditions_around_it(lines: str, flags: list[str | None]) -> None:
    (key,) = read(lines).config_keys
    assert flags == [each.flag for each in key.conditions]


MICRO = "cfg['train_micro_batch_size_per_gpu'] = "
STEPS = "\ncfg['gradient_accumulation_steps'] = "
WHOLE = "\ncfg['train_batch_size'] = "
WORLD = "torch.distributed.get_world_size()"


@pytest.mark.parametrize(
    ("lines", "micro_batch", "steps", "left"),
    [
        (MICRO + "args.batch", 4, None, []),
        (MICRO + "8" + STEPS + "args.steps", 8, 2, []),
        (f"{MICRO}args.batch{WHOLE}args.batch * {WORLD} * args.steps", 4, 2, []),
        (f"{MICRO}args.batch{WHOLE}{WORLD} * args.batch", 4, 1, []),
        (f"{MICRO}args.batch{STEPS}args.steps{WHOLE}args.batch * {WORLD}", 4, 2, [WHOLE]),
        (f"{MICRO}args.batch{WHOLE}128", 4, None, [WHOLE]),
        (f"if big:\n    {MICRO}args.batch", None, None, [MICRO]),
        (f"{MICRO}args.batch // 2", None, None, [MICRO]),
        (f"{MICRO}2\n{MICRO}4", None, None, [MICRO, MICRO]),
        (
            f"{MICRO}args.batch\nloader = torch.utils.data.DataLoader(x, batch_size=args.batch)",
            4,
            None,
            [],
        ),
        (f"{MICRO}2\nloader = torch.utils.data.DataLoader(x, batch_size=4)", None, None, []),
    ],
)
def test_a_batch_in_the_config_is_a_setting_of_the_script_where_it_can_be_followed(
    lines: str, micro_batch: int | None, steps: int | None, left: list[str]
) -> None:
    facts = read(lines)
    settings = resolve_script(facts, ())
    assert micro_batch == (settings.micro_batch and settings.micro_batch.value)
    assert steps == (settings.accumulation_steps and settings.accumulation_steps.value)
    assert [each.strip().removesuffix(" =") for each in left] == [
        key.code for key in facts.config_keys
    ]


def test_a_batch_that_a_word_gives_goes_into_the_config_too() -> None:
    settings = resolve_script(read(MICRO + "args.batch"), ("--batch", "1"))
    assert settings.micro_batch is not None
    assert (1, "`--batch 1` after the script") == (
        settings.micro_batch.value,
        settings.micro_batch.source,
    )


def test_the_trainer_takes_its_batch_from_its_arguments_alone() -> None:
    text = (
        f"{HEAD}{HF_CALL}{MICRO}2\n"
        "TrainingArguments('out', deepspeed=cfg, per_device_train_batch_size=4)\n"
    )
    facts = parse_script(text, "train.py")
    assert 4 == facts.micro_batch.value
    assert [("train_micro_batch_size_per_gpu",)] == [key.keys for key in facts.config_keys]


def test_a_script_that_edits_its_config_is_followed() -> None:
    facts = facts_of("raw_config_edited")
    settings = resolve_script(facts, ("--batch_size", "3"))
    assert settings.micro_batch is not None
    assert settings.accumulation_steps is not None
    assert (3, 2) == (settings.micro_batch.value, settings.accumulation_steps.value)
    stage, scheduler = facts.config_keys[2:]
    assert ("--zero_stage", 2) == (stage.value.flag, stage.value.value)
    assert ["--warmup"] == [each.flag for each in scheduler.conditions]
    assert [("tensorboard",), ("wall_clock_breakdown",)] == [k.keys for k in facts.config_keys[:2]]


def test_a_key_is_shown_as_it_is_written() -> None:
    (key,) = read("cfg['a']['b'] = 3").config_keys
    expected = KeyUse(keys=("a", "b"), sets=True, value=key.value, line=9, code="cfg['a']['b']")
    assert expected == key
    assert (3, UNSEEN.flag) == (key.value.value, key.value.flag)
