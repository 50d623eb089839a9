"""What `doctor --fix` writes into the text of a script."""

import pytest

from zerowiz.core.preflight.stages import STAGE_ROWS
from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import StageKind
from zerowiz.errors import LineEdit, UnreachableScriptError
from zerowiz.probe.script.line_edits import with_line_edits
from zerowiz.probe.script.read_script import parse_script

HF = "from transformers import Trainer, TrainingArguments\nt = Trainer(model, args={})\nt.train()\n"
ACCELERATED = (
    "from accelerate import Accelerator\nfrom accelerate.utils import DeepSpeedPlugin\n"
    "from transformers import AutoModel\n{}\nmodel = AutoModel.from_pretrained('x')\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\n{}\n"
)
LIGHTNING = "from lightning import Trainer\nfrom lightning.pytorch.strategies import *\n{}\n"


def edited(text: str, **change: str) -> str:
    edit = LineEdit(path="train.py", line=1, **change)
    return with_line_edits(text.encode(), [edit]).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, fsdp=1)", "f(a)"),
        ("f(fsdp=1, a=2)", "f(a=2)"),
        ("f(fsdp=1)", "f()"),
        ("f(a, fsdp=1,)", "f(a,)"),
        ("f(a, fsdp=(1))", "f(a)"),
        ("f(\n    a=1,\n    fsdp=1,  # why\n    b=2,\n)", "f(\n    a=1,\n    b=2,\n)"),
        ("f(\r\n    a=1,\r\n    fsdp=1,\r\n)\r\n", "f(\r\n    a=1,\r\n)\r\n"),
        ("f('ä', fsdp=1); g('ö')", "f('ä'); g('ö')"),
        ("f(g(fsdp=1), fsdp=2)", "f(g(), fsdp=2)"),
        # What would be no Python, and what is not there.
        ("f(fsdp=1,)", "f(fsdp=1,)"),
        ("f(**{'fsdp': 1})", "f(**{'fsdp': 1})"),
        ("x = 1\nf(fsdp=1)", "x = 1\nf(fsdp=1)"),
    ],
)
def test_a_keyword_is_removed_and_all_else_stays(before: str, after: str) -> None:
    assert after == edited(before, keyword="fsdp")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", 'f(kind="a")'),
        ("f(1, *args)", 'f(1, *args, kind="a")'),
        ("f(\n    1,\n)", 'f(\n    1, kind="a",\n)'),
        ("f(kind=g(2), b=3)", 'f(kind="a", b=3)'),
        ("h(kind=1)", "h(kind=1)"),
    ],
)
def test_a_keyword_gets_another_value(before: str, after: str) -> None:
    assert after == edited(before, call="f", keyword="kind", code='"a"')


def test_a_line_that_goes_moves_no_other_edit() -> None:
    text = b"f(\n    a=1,\n    fsdp=1,\n)\ng(fsdp=2)\nh(fsdp=3)\n"
    edits = [LineEdit(path="train.py", line=line, keyword="fsdp") for line in (3, 5)]
    assert b"f(\n    a=1,\n)\ng()\nh(fsdp=3)\n" == with_line_edits(text, edits)


def test_another_method_is_called() -> None:
    before = "accelerator.unwrap(model).save_pretrained('out')"
    assert "trainer.save_model('out')" == edited(
        before, call="save_pretrained", func="trainer.save_model"
    )


@pytest.mark.parametrize(
    "text",
    [
        HF.format("TrainingArguments('out', deepspeed=make())"),
        HF.format("TrainingArguments('out', deepspeed={'zero_optimization': {'stage': 2}})"),
        ACCELERATED.format(
            "plugin = DeepSpeedPlugin(hf_ds_config=make())\n"
            "accelerator = Accelerator(deepspeed_plugin=plugin)",
            "",
        ),
        LIGHTNING.format("Trainer(strategy=DeepSpeedStrategy(config=make()))"),
        LIGHTNING.format("Trainer(devices=2)"),
        LIGHTNING.format("Trainer(strategy='ddp')"),
        (
            "import argparse, deepspeed\nparser = argparse.ArgumentParser()\n"
            "parser = deepspeed.add_config_arguments(parser)\nargs = parser.parse_args()\n"
            "deepspeed.initialize(args=args, model=m, config=args.deepspeed_config)\n"
        ),
    ],
)
def test_what_is_written_makes_a_way_for_the_config(text: str) -> None:
    with pytest.raises(UnreachableScriptError) as refused:
        deliver(parse_script(text, "train.py"), (), "ds_config_zero2.json")
    written = with_line_edits(text.encode(), refused.value.edits).decode()
    assert deliver(parse_script(written, "train.py"), (), "ds_config_zero2.json")
    assert 1 == len([line for line in text.splitlines() if line not in written.splitlines()])


@pytest.mark.parametrize(
    ("save", "written"),
    [
        ("model.save_pretrained('out')", "t.save_model('out')"),
        ("t.model.save_pretrained('out')", "t.save_model('out')"),
        # What the Trainer's does not take, and what not all ranks come to.
        ("model.save_pretrained('out', max_shard_size='1GB')", None),
        ("if t.is_world_process_zero(): model.save_pretrained('out')", None),
    ],
)
def test_the_trainer_saves_instead_of_its_model(save: str, written: str | None) -> None:
    text = f"{HF.format('TrainingArguments()')}{save}\n"
    check_saved(text, save, written)


@pytest.mark.parametrize(
    ("save", "written"),
    [
        (
            "accelerator.unwrap_model(model).save_pretrained('out')",
            (
                "accelerator.unwrap_model(model).save_pretrained("
                "'out', state_dict=accelerator.get_state_dict(model), "
                "is_main_process=accelerator.is_main_process)"
            ),
        ),
        (
            "model.save_pretrained('out', is_main_process=accelerator.is_main_process)",
            (
                "model.save_pretrained('out', is_main_process=accelerator.is_main_process, "
                "state_dict=accelerator.get_state_dict(model))"
            ),
        ),
        ("if accelerator.is_main_process: model.save_pretrained('out')", None),
    ],
)
def test_accelerate_gathers_what_is_saved(save: str, written: str | None) -> None:
    text = ACCELERATED.format("accelerator = Accelerator()", save)
    check_saved(text, save, written)


def check_saved(text: str, save: str, written: str | None) -> None:
    saves = parse_script(text, "train.py").weight_saves
    edits = [each.instead for each in saves if each.instead is not None]
    if written is None:
        assert [True] == [each.instead is None for each in saves]
        return
    text_written = text.replace(save, written)
    assert text_written == with_line_edits(text.encode(), edits).decode()
    assert () == parse_script(text_written, "train.py").weight_saves


def test_a_row_of_the_stages_is_no_such_row_once_it_is_written() -> None:
    text = ACCELERATED.format(
        "accelerator = Accelerator()", "accelerator.clip_grad_value_(model.parameters(), 1.0)"
    )
    facts = parse_script(text, "train.py")
    assert [StageKind.CLIPS_VALUES] == [call.kind for call in facts.stage_calls]
    edits = [facts.edit(call.line, **STAGE_ROWS[call.kind].edit) for call in facts.stage_calls]
    written = with_line_edits(text.encode(), edits).decode()
    assert () == parse_script(written, "train.py").stage_calls
