"""Which calls of a script are right at some stages only, and which only look so."""

import ast
from pathlib import Path

import pytest
from paths import ROOT, TEMPLATES
from probe.reading import ENGINE, PREPARED, TRAINED
from probe.scripts import SCRIPTS

from zerowiz.core.script.facts import Resolver, ScriptFacts, StageKind
from zerowiz.probe.script.read_script import parse_script
from zerowiz.probe.script.source import is_one_rank

IMPORTS = """import torch, deepspeed
from accelerate import Accelerator
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import create_reference_model
tokenizer = AutoTokenizer.from_pretrained("gpt2")
"""
HF = TRAINED.removesuffix("trainer.train()\n")
RANKED = f"{ENGINE}rank = torch.distributed.get_rank()\n"
RESIZE = """def resize(tokenizer, model):
    model.resize_token_embeddings(len(tokenizer))
    table = model.get_input_embeddings().weight.data
    table[-1:] = table[:-1].mean(dim=0, keepdim=True)
"""


def facts_of(head: str, lines: str) -> ScriptFacts:
    return parse_script(f"{IMPORTS}{head}{lines}\n", "train.py")


def kinds(head: str, lines: str) -> list[StageKind]:
    return [call.kind for call in facts_of(head, lines).stage_calls]


@pytest.mark.parametrize(
    ("head", "lines", "kind"),
    [
        (TRAINED, "if trainer.is_world_process_zero():\n    trainer.evaluate()", StageKind.ALONE),
        (TRAINED, "if args.process_index == 0:\n    trainer.predict(x)", StageKind.ALONE),
        (TRAINED, "if args.should_save:\n    trainer.save_model()", StageKind.ALONE_SHARDED),
        (
            TRAINED,
            "if args.local_rank in [-1, 0]:\n    trainer.save_model('o')",
            StageKind.ALONE_SHARDED,
        ),
        (PREPARED, "if acc.is_main_process:\n    acc.save_state('o')", StageKind.ALONE),
        (PREPARED, "if step == 1 and acc.is_main_process:\n    acc.save_state()", StageKind.ALONE),
        (
            PREPARED,
            "if acc.is_main_process:\n    acc.unwrap_model(net).f(s=acc.get_state_dict(net))",
            StageKind.ALONE_SHARDED,
        ),
        (
            PREPARED,
            "def save(acc):\n    acc.save_state('o')\nif acc.is_local_main_process:\n    save(acc)",
            StageKind.ALONE,
        ),
        (
            PREPARED,
            "def main():\n    if not acc.is_main_process:\n        return\n    acc.save_model(net, 1)",
            StageKind.ALONE_SHARDED,
        ),
        (
            PREPARED,
            (
                "class Mine:\n    def save(self):\n        acc.save_state('o')\n"
                "    def end(self):\n        if acc.is_main_process:\n            self.save()"
            ),
            StageKind.ALONE,
        ),
        (RANKED, "if rank == 0:\n    engine.save_checkpoint('o')", StageKind.ALONE),
        (RANKED, "if rank != 0:\n    pass\nelse:\n    engine.save_checkpoint(1)", StageKind.ALONE),
        (RANKED, "if not rank == 0:\n    engine.save_checkpoint('o')", StageKind.ALONE),
        (RANKED, "if rank == 0:\n    engine.save_16bit_model('o')", StageKind.ALONE_SHARDED),
        (RANKED, "if rank == 0:\n    engine.module.generate(x)", StageKind.ALONE_SHARDED),
        (
            RANKED,
            "if args.local_rank == -1 or rank == 0:\n    y = engine(x)",
            StageKind.ALONE_SHARDED,
        ),
        (HF, "net.get_input_embeddings().weight.data[5] = 0", StageKind.READS),
        (HF, "net.get_input_embeddings().weight.data.mean(0)", StageKind.READS),
        (HF, "size = net.get_input_embeddings().weight.shape[0]", StageKind.READS),
        (HF, "first = net.get_output_embeddings().weight[0]", StageKind.READS),
        (HF, f"{RESIZE}resize(tokenizer, model=net)", StageKind.READS),
        (HF, "net.lm_head.weight.data.normal_(0, 1)", StageKind.READS),
        (HF, "torch.nn.init.xavier_uniform_(net.lm_head.weight)", StageKind.READS),
        (TRAINED, "merged = net.merge_and_unload()", StageKind.READS),
        (
            RANKED,
            "for old, new in zip(mean.parameters(), engine.parameters()):\n    old.add_(new)",
            StageKind.READS,
        ),
        (RANKED, "with engine.no_sync():\n    engine.backward(loss)", StageKind.NO_SYNC),
        (PREPARED, "with net.no_sync():\n    acc.backward(loss)", StageKind.NO_SYNC),
        (HF, "trainer.evaluate()\ntrainer.train()", StageKind.EVALUATES_FIRST),
        (PREPARED, "acc.clip_grad_value_(net.parameters(), 1.0)", StageKind.CLIPS_VALUES),
        (
            PREPARED,
            "two = AutoModelForCausalLM.from_pretrained('x')\nnet, two = acc.prepare(net, two)",
            StageKind.TWO_MODELS,
        ),
        (
            PREPARED.replace("net, opt, loader = acc.prepare(net, opt, loader)\n", ""),
            "net = acc.prepare(net)\nopt, loader = acc.prepare(opt, loader)",
            StageKind.NO_MODEL,
        ),
        (TRAINED, "again = Trainer(model=net, args=args)", StageKind.SECOND_TRAINER),
        (HF, "reference = create_reference_model(net)", StageKind.COPIES_MODEL),
    ],
)
def test_a_call_that_is_wrong_at_some_stages_is_found(
    head: str, lines: str, kind: StageKind
) -> None:
    assert [kind] == kinds(head, lines)


@pytest.mark.parametrize(
    ("head", "lines"),
    [
        (TRAINED, "trainer.save_model('o')\ntrainer.evaluate()\ntrainer.save_state()"),
        (TRAINED, "if trainer.is_world_process_zero():\n    trainer.save_state()"),
        (TRAINED, "if trainer.is_world_process_zero():\n    tokenizer.save_pretrained('o')"),
        (TRAINED, "with args.main_process_first():\n    trainer.evaluate()"),
        (TRAINED, "if args.local_rank != -1:\n    trainer.evaluate()"),
        (TRAINED, "if args.do_eval:\n    trainer.evaluate()"),
        (
            TRAINED,
            "if args.should_save and not is_deepspeed_zero3_enabled():\n    trainer.save_model()",
        ),
        (PREPARED, "acc.wait_for_everyone()\nacc.save_state('o')\nacc.get_state_dict(net)"),
        (
            # As transformers' Trainer.
            PREPARED.replace("net, opt, loader = acc.prepare(net, opt, loader)\n", ""),
            (
                "if args.apex:\n    net = acc.prepare(net)\nelif args.lomo:\n"
                "    opt = acc.prepare(opt)\nelse:\n    net, opt = acc.prepare(net, opt)"
            ),
        ),
        (PREPARED, "with acc.no_sync(net):\n    acc.backward(loss)"),
        (PREPARED, "if acc.is_main_process:\n    acc.save(state, 'o')\n    acc.log(values)"),
        (
            PREPARED,
            "if acc.is_main_process or acc.distributed_type == 'DEEPSPEED':\n    acc.save_state(1)",
        ),
        (
            PREPARED,
            "if acc.is_main_process and args.verbose:\n    pass\nelse:\n    acc.save_state('o')",
        ),
        (
            PREPARED,
            "if acc.is_main_process:\n    acc.save_state(1)\nelse:\n    acc.save_state(1)",
        ),
        (PREPARED, "if acc.is_main_process:\n    vae(x)\n    vae.generate(x)"),
        (PREPARED, "load_a, load_b = acc.prepare(load_a, load_b)"),
        (PREPARED, "acc.clip_grad_norm_(net.parameters(), 1.0)"),
        (
            PREPARED,
            (
                "class Mine:\n    def save(self):\n        acc.save_state('o')\n"
                "if acc.is_main_process:\n    image.save('x.png')"
            ),
        ),
        (RANKED, "engine.save_checkpoint('o')\nengine.save_16bit_model('o')\nengine(x)"),
        (RANKED, "if rank == 1:\n    print(rank)\nengine.save_checkpoint('o')"),
        (RANKED, "for a, b in zip(one.parameters(), two.parameters()):\n    a.add_(b)"),
        (
            RANKED,
            (
                "with deepspeed.zero.GatheredParameters(engine.parameters()):\n"
                "    for a, b in zip(mean.parameters(), engine.parameters()):\n        a.add_(b)"
            ),
        ),
        (PREPARED, "loader = acc.prepare(loader)"),
        (PREPARED, "other = AutoModelForCausalLM.from_pretrained('o')\nother = acc.prepare(other)"),
        (
            PREPARED.replace("opt = torch", "optimizer = torch").replace("opt, loader", "*rest"),
            "schedule = acc.prepare(schedule)",
        ),
        (HF, "net.resize_token_embeddings(len(tokenizer))\nnet.get_input_embeddings()"),
        (HF, "net.get_input_embeddings().weight.requires_grad = False"),
        (HF, "net.get_input_embeddings().requires_grad_(True)"),
        (HF, "where = net.get_input_embeddings().weight.device"),
        (
            HF,
            (
                "with deepspeed.zero.GatheredParameters([net.get_input_embeddings().weight]):\n"
                "    size = net.get_input_embeddings().weight.shape[0]"
            ),
        ),
        (HF, "if not is_deepspeed_zero3_enabled():\n    net.lm_head.weight.data.normal_(0, 1)"),
        (RANKED.replace("engine, opt", "net.head.weight.data.zero_()\nengine, opt"), ""),
        (
            "net = AutoModelForCausalLM.from_pretrained('gpt2')\nnet.lm_head.weight.data.zero_()\n",
            "trainer = Trainer(model=net, args=TrainingArguments('out'))",
        ),
        (TRAINED, "other = AutoModelForCausalLM.from_pretrained('o')\nother.merge_and_unload()"),
        (TRAINED, "base = PeftModel.from_pretrained(load(), 'o')\nbase.merge_and_unload()"),
        (TRAINED, "args = TrainingArguments('two')\nagain = Trainer(model=net, args=args)"),
        (HF, "if args.do_train:\n    trainer.train()\nif args.do_eval:\n    trainer.evaluate()"),
        (
            "args = TrainingArguments('out')\n",
            "if x:\n    t = Trainer(model=a, args=args)\nelse:\n    t = Trainer(model=b, args=args)",
        ),
    ],
)
def test_what_is_right_at_every_stage_is_not_found(head: str, lines: str) -> None:
    assert [] == kinds(head, lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank == 0", True),
        ("rank != 0", True),
        ("dist.get_rank() == 0", True),
        ("self.global_rank == 0", True),
        ("args.local_rank in (-1, 0)", True),
        ("rank == 0 and step > 4", True),
        ("args.local_rank == -1 or dist.get_rank() == 0", True),
        ("accelerator.is_main_process", True),
        ("is_main_process()", True),
        ("trainer.is_world_process_zero()", True),
        ("is_rank_0()", True),
        ("not is_master", True),
        ("not (is_master and verbose)", False),
        ("not (is_master or rank == 0)", True),
        ("rank == 0 or verbose", False),
        ("args.local_rank == -1", False),
        ("args.local_rank != -1", False),
        ("world_size == 0", False),
        ("lora_rank == 0", False),
        ("step == 0", False),
        ("args.process", False),
        ("self.main", False),
        ("first(x)", False),
    ],
)
def test_a_condition_on_the_rank_is_known(text: str, expected: bool) -> None:
    assert expected is is_one_rank(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("if acc.is_main_process:\n    acc.save_state()", True),
        ("def main():\n    if acc.is_main_process:\n        acc.save_state()\nmain()", True),
        ("if step == 1 and acc.is_main_process:\n    acc.save_state()", None),
        ("keep = False\nif keep and acc.is_main_process:\n    acc.save_state()", False),
    ],
)
def test_whether_every_run_comes_there_is_asked_beside_the_rank(
    lines: str, expected: bool | None
) -> None:
    facts = facts_of(PREPARED, lines)
    (call,) = facts.stage_calls
    assert expected is Resolver(facts).holds(call.conditions)


@pytest.mark.parametrize("folder", [SCRIPTS, TEMPLATES, ROOT / "tests" / "scripts"])
def test_nothing_is_found_in_a_script_of_ours(folder: Path) -> None:
    for path in folder.glob("*.py"):
        facts = parse_script(path.read_text(encoding="utf-8"), path.name)
        assert () == facts.stage_calls, path
