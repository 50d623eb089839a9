"""What a script does with adapters: method, rank, layers, quantized weights."""

import pytest
from probe.reading import facts_of, value_of

from zerowiz.core.model.from_name import config_of_gpt, guess_model
from zerowiz.core.script.facts import OwnModel
from zerowiz.core.script.settings import ScriptRun, ScriptSettings
from zerowiz.core.workload import Method, Optimizer
from zerowiz.probe.script.read_script import parse_script


def test_peft_chooses_the_layers_where_nobody_names_them() -> None:
    assert ScriptRun(facts_of("lora_accelerate"), ()).settings.targets_by_architecture
    assert not ScriptRun(facts_of("lora_tiny"), ()).settings.targets_by_architecture


def test_what_trains_beside_the_adapters_is_named_where_they_train() -> None:
    facts = facts_of("lora_optional")
    (said,) = ScriptRun(facts, ("--use_lora",)).settings.uncounted
    assert ("LoraConfig(modules_to_save=['lm_head'])", 27) == (said.code, said.line)
    assert () == ScriptRun(facts, ()).settings.uncounted


LORA_HEAD = """import argparse
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from transformers import BitsAndBytesConfig, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--lora", action="store_true")
p.add_argument("--rank", type=int, default=0)
p.add_argument("--kind", default="lora")
p.add_argument("--merge", action="store_true")
args = p.parse_args()
TrainingArguments("out")
"""


ADD_IF = "def add(m):\n    if args.kind == 'lora': get_peft_model(m, LoraConfig())\n"


def lora_settings(text: str, *words: str) -> ScriptSettings:
    return ScriptRun(parse_script(LORA_HEAD + text, "train.py"), words).settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("get_peft_model(m, LoraConfig())", Method.LORA),
        ("c = LoraConfig()\nget_peft_model(m, peft_config=c)", Method.LORA),
        ("c = LoraConfig()\nm.add_adapter(c)", Method.LORA),
        ("c = LoraConfig()\nMyTrainer(peft_config=c)", Method.LORA),
        ("c = None\nMyTrainer(peft_config=c)", None),
        ("MyTrainer(peft_config=None)", None),
        ("train(m, lora=LoraConfig())", Method.LORA),
        ("def make():\n    return LoraConfig()\nget_peft_model(m, make())", Method.LORA),
        (
            (
                "def make():\n    if x: return None\n    return LoraConfig()\n"
                "MyTrainer(peft_config=make())"
            ),
            None,
        ),
        ("def add(m, c):\n    return get_peft_model(m, c)\nadd(m, LoraConfig())", Method.LORA),
        ("def add(m):\n    get_peft_model(m, LoraConfig())\nif args.lora: add(m)", Method.FULL),
        (f"{ADD_IF}if not args.lora: add(m)", Method.LORA),
        (f"{ADD_IF}if args.lora: add(m)", None),
        ("if args.lora:\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("if not args.lora:\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("if args.lora:\n    pass\nelse:\n    get_peft_model(m, LoraConfig())", Method.LORA),
        (
            (
                "if args.lora:\n    get_peft_model(m, LoraConfig(r=4))\n"
                "else:\n    get_peft_model(m, LoraConfig(r=8))"
            ),
            Method.LORA,
        ),
        ("if args.rank > 0:\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("if args.kind == 'lora':\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("if args.kind != 'full':\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("if args.kind in ('dora', 'vera'):\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("USE = True\nif USE:\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("USE = False\nif USE:\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("if args.lora and args.merge:\n    get_peft_model(m, LoraConfig())", None),
        ("if big():\n    get_peft_model(m, LoraConfig())", None),
        ("x = not x\nif x:\n    get_peft_model(m, LoraConfig())", None),
        ("if not args.kind == 'full':\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("c = LoraConfig() if args.lora else None\nMyTrainer(peft_config=c)", Method.FULL),
        (
            "c = None\nif args.lora:\n    c = LoraConfig()\nMyTrainer(peft_config=c)",
            Method.FULL,
        ),
        ("get_peft_model(m, PrefixTuningConfig())", None),
        ("get_peft_model(m, elsewhere.config)", None),
        ("PeftModel.from_pretrained(m, 'adapter', is_trainable=True)", None),
        ("get_peft_model(load(load_in_4bit=True), LoraConfig())", Method.QLORA),
        (
            "b = BitsAndBytesConfig(load_in_4bit=args.lora)\nget_peft_model(m, LoraConfig())",
            Method.LORA,
        ),
        (
            "k = dict(load_in_4bit=True)\nload(**k)\nget_peft_model(m, LoraConfig())",
            Method.QLORA,
        ),
        ("load(load_in_8bit=True)\nget_peft_model(m, LoraConfig())", Method.LORA),
        # In 4 bits or in 8: whoever loads the model says it.
        ("get_peft_model(prepare_model_for_kbit_training(m), LoraConfig())", None),
        ("load(quantization_config=theirs())\nget_peft_model(m, LoraConfig())", None),
    ],
)
def test_adapters_are_seen_with_their_condition(text: str, expected: Method | None) -> None:
    assert expected == value_of(lora_settings(text), "method")


RESUMED = """if not args.merge:
    if saved is not None:
        m = PeftModel.from_pretrained(m, saved, is_trainable=True)
    else:
        m = get_peft_model(m, LoraConfig())
"""


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (RESUMED, (), Method.LORA),
        (RESUMED, ("--merge",), Method.FULL),
        # Nothing is trained of these, or there is a third way.
        (RESUMED.replace(", is_trainable=True", ""), (), None),
        (RESUMED.replace("else:", "elif big:"), (), None),
        (RESUMED.replace("not args.merge", "small"), (), None),
    ],
)
def test_adapters_of_a_checkpoint_are_adapters_too(
    text: str, words: tuple[str, ...], expected: Method | None
) -> None:
    assert expected == value_of(lora_settings(text, *words), "method")


@pytest.mark.parametrize(
    ("config", "rank", "targets"),
    [
        ("LoraConfig()", 8, None),
        ("LoraConfig(r=4, target_modules=None)", 4, None),
        ("LoraConfig(r=args.rank or 8)", None, None),
        ("LoraConfig(r=C['r'], target_modules=C['on'])", 2, "q,v"),
        ("LoraConfig(**C2)", 2, "q"),
        ("LoraConfig(**theirs)", None, None),
        ("LoraConfig(target_modules='all-linear')", 8, "all-linear"),
        ("LoraConfig(target_modules='.*attn.*')", 8, None),
        ("LoraConfig(target_modules=('q_proj', 'v_proj'))", 8, "q_proj,v_proj"),
        ("LoraConfig(target_modules=find_all_linear_names(m))", 8, None),
        ("LoraConfig(target_modules=GROWING)", 8, None),
    ],
)
def test_rank_and_layers_are_read_where_they_are_written(
    config: str, rank: int | None, targets: str | None
) -> None:
    text = (
        "C = {'r': 2, 'on': ['q', 'v']}\nC2 = dict(r=2, target_modules=['q'])\n"
        "GROWING = ['q']\nGROWING.append('v')\n"
    )
    said = lora_settings(f"{text}get_peft_model(m, {config})")
    assert rank == (said.lora_rank.value if said.lora_rank else None)
    assert targets == (said.lora_target_modules.value if said.lora_target_modules else None)


@pytest.mark.parametrize(
    ("text", "words", "change"),
    [
        ("get_peft_model(m, LoraConfig())", (), "edit train.py line 11"),
        (
            "if args.lora:\n    get_peft_model(m, LoraConfig())",
            (),
            "put `--lora` after train.py",
        ),
        (
            "if args.lora:\n    get_peft_model(m, LoraConfig())",
            ("--lora",),
            "remove `--lora` after train.py",
        ),
        (
            "if args.kind == 'lora':\n    get_peft_model(m, LoraConfig())",
            (),
            "choose another `--kind` after train.py",
        ),
    ],
)
def test_the_method_says_how_to_change_it(text: str, words: tuple[str, ...], change: str) -> None:
    said = lora_settings(text, *words).method
    assert said is not None
    assert change == said.change_to(Method.FULL)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("load(load_in_4bit=True)\nm = prepare_model_for_kbit_training(m)", True),
        ("load(load_in_8bit=True)\nm = prepare_model_for_kbit_training(m)", True),
        (
            (
                "load(load_in_4bit=True)\n"
                "m = prepare_model_for_kbit_training(m, use_gradient_checkpointing=False)"
            ),
            False,
        ),
        ("load(load_in_4bit=args.lora)\nm = prepare_model_for_kbit_training(m)", None),
    ],
)
def test_preparing_a_quantized_base_turns_checkpointing_on(
    lines: str, expected: bool | None
) -> None:
    assert expected == value_of(lora_settings(lines), "gradient_checkpointing")


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ("torch.optim.AdamW(ps)", Optimizer.ADAMW),
        ("bitsandbytes.optim.AdamW8bit(ps)", Optimizer.ADAMW_8BIT),
        ("deepspeed.ops.adam.DeepSpeedCPUAdam(ps)", Optimizer.ADAMW),
        ("torch.optim.SGD(ps)", Optimizer.SGD),
        ("Muon(ps)", None),
        ("torch.optim.SGD(ps) if x else torch.optim.AdamW(ps)", None),
    ],
)
def test_the_optimizer_of_a_loop_is_read_by_its_class(
    built: str, expected: Optimizer | None
) -> None:
    text = f"import bitsandbytes, deepspeed, torch\noptimizer = {built}\n"
    text += "engine = deepspeed.initialize(model=m, optimizer=optimizer, config='ds.json')\n"
    said = ScriptRun(parse_script(text, "train.py"), ()).settings
    assert expected == (said.optimizer.value if said.optimizer else None)
    assert ("optimizer" in said.unseen) is (expected is None)


@pytest.mark.parametrize(
    ("built", "unseen"),
    [
        ("bitsandbytes.optim.Lion8bit(ps)", True),
        ("torch.optim.RMSprop(ps)", True),
        ("Mine(ps)", True),
        ("torch.optim.AdamW(ps)", False),
        ("torch.optim.lr_scheduler.LambdaLR(o)", False),
        ("accelerate.utils.DummyOptim(ps)", False),
    ],
)
def test_an_optimizer_that_is_not_counted_is_said_to_be(built: str, unseen: bool) -> None:
    text = f"""import accelerate, bitsandbytes, torch
class Mine(torch.optim.SGD):
    pass
acc = accelerate.Accelerator()
acc.prepare(model, {built})
"""
    settings = ScriptRun(parse_script(text, "train.py"), ()).settings
    assert unseen is ("optimizer" in settings.unseen)


# The sizes of a model that a script builds of its own classes.

HEAD = "from model import GPT, GPTConfig\n"
OPTIONS = """import argparse, deepspeed
p = argparse.ArgumentParser()
p.add_argument("--n_layer", type=int, default=24)
args = p.parse_args()
"""


EMBEDS = """from torch import nn
n_layer = 12
n_embd = 768
class Net(nn.Module):
    def __init__(self, words, positions):
        self.words = nn.Embedding(words, n_embd)
        self.positions = nn.Embedding(positions, n_embd)
Net(100, positions=64)
"""


FIELDS = """class ModelArgs:
    dim: int = 64
    n_layers: int = 2
    vocab_size: int = 100
"""


def own_model(text: str, *words: str) -> OwnModel | None:
    return ScriptRun(parse_script(HEAD + text, "train.py"), words).settings.own_model


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("n_layer = 12\nn_embd = 768\nGPT(GPTConfig(**made))", (), (12, 768, 50257)),
        ("GPT(GPTConfig(n_layer=2, n_embd=64, vocab_size=100))", (), (2, 64, 100)),
        ("made = dict(n_layers=2, dim=64)\nGPT(ModelArgs(**made))", (), (2, 64, 50257)),
        (f"{OPTIONS}GPT(GPTConfig(n_layer=args.n_layer, n_embd=64))", (), (24, 64, 50257)),
        (
            f"{OPTIONS}GPT(GPTConfig(n_layer=args.n_layer, n_embd=64))",
            ("--n_layer", "3"),
            (3, 64, 50257),
        ),
        (f"{FIELDS}GPT(ModelArgs(n_layers=3))", (), (3, 64, 100)),
        (f"{FIELDS}GPT(ModelArgs(**read()))", (), None),
        ("n_layer = 12\nGPT(GPTConfig(n_embd=width()))", (), None),
        # Patches are no words, and this may be a model of the library.
        ("n_layer = 12\nn_embd = 768\nViT(made)", (), None),
        ("n_layer = 12\nn_embd = 768\nGPTModel.from_pretrained(given)", (), None),
        (EMBEDS, (), (12, 768, 100)),
        ("n_layer = 12\nn_embd = 64\nn_embd = 32", (), None),
        # An LSTM is no GPT.
        ("num_layers = 2\nhidden_size = 64", (), None),
        ("from transformers import GPT2Config\nGPT2Config(n_layer=2, n_embd=64)", (), None),
    ],
)
def test_the_sizes_are_those_that_its_config_gets(
    text: str, words: tuple[str, ...], expected: tuple[int, int, int] | None
) -> None:
    found = own_model(text, *words)
    assert expected == (found and (found.layers, found.hidden_size, found.vocab_size))


def test_a_gpt_of_nanogpts_sizes_has_as_many_parameters_as_it_says() -> None:
    # nanoGPT, README.md: 124M, and GPT-2 of the same shape.
    found = own_model("n_layer = 12\nn_embd = 768\nGPT(made)\n")
    assert found is not None
    assert "gpt-12x768-v50257" == found.name
    where = "`n_layer = 12` in train.py line 2, `n_embd = 768` in train.py line 3"
    assert f"{where}, the vocabulary of GPT-2" == found.source
    tied = own_model("n_layer = 12\nn_embd = 768\nm = GPT(made)\nm.wte.weight = m.lm_head.weight\n")
    config = None if tied is None else config_of_gpt(tied.name)
    assert config is not None
    # Without its 786,432 positions, biases and norms.
    assert 124 == round(guess_model("own", config).params / 10**6)


FREEZING = """from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
from dataclasses import dataclass
@dataclass
class Own:
    freeze: bool = False
own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("gpt2")
{lines}
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("lines", "words", "count"),
    [
        ("model.requires_grad_(False)", (), 1),
        ("for p in model.parameters():\n    p.requires_grad = False", (), 1),
        ("for n, p in model.named_parameters():\n    p.requires_grad = 'lora' in n", (), 1),
        ("if own.freeze:\n    model.model.requires_grad_(False)", (), 0),
        ("if own.freeze:\n    model.model.requires_grad_(False)", ("--freeze",), 1),
        ("model.requires_grad_(True)\nmodel.lm_head.weight.requires_grad = True", (), 0),
        # What stands beside the trained model is none of it.
        ("ref_model.requires_grad_(False)\nvae.requires_grad_(False)", (), 0),
        ("for p in teacher.parameters():\n    p.requires_grad = False", (), 0),
        ("model = get_peft_model(model, LoraConfig())\nmodel.x.requires_grad_(False)", (), 0),
    ],
)
def test_what_may_freeze_the_model_is_seen(lines: str, words: tuple[str, ...], count: int) -> None:
    text = "from peft import LoraConfig, get_peft_model\n" + FREEZING.format(lines=lines)
    assert count == len(ScriptRun(parse_script(text, "train.py"), words).settings.freezes)


# What a script shows of a model whose size is not read.

ENGINE = "engine = deepspeed.initialize(model=model, config='ds.json')\n"
LIBRARY = "from transformers import GPT2LMHeadModel, LlamaConfig\n"


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("model = Net(LlamaConfig(max_position_embeddings=128))", 128),
        ("model = Net(ModelArgs(max_seq_len=256))", 256),
        ("self.wpe = nn.Embedding(128, 64)", 128),
        ("self.position_embedding_table = nn.Embedding(num_embeddings=16, embedding_dim=8)", 16),
        ("self.parts = nn.ModuleDict(dict(wte=nn.Embedding(9, 8), wpe=nn.Embedding(64, 8)))", 64),
        # The config decides the rows.
        ("GPT2Config(n_positions=32)\nself.wpe = nn.Embedding(64, 8)", 32),
        ("self.wte = nn.Embedding(50257, 64)", None),
        ("self.composed = nn.Embedding(128, 64)", None),
        ("self.wpe = nn.Embedding(16, 8)\nself.text_pos = nn.Embedding(64, 8)", None),
    ],
)
def test_the_positions_are_those_of_the_config_or_of_the_embedding(
    text: str, positions: int | None
) -> None:
    run = ScriptRun(parse_script(f"import deepspeed\n{LIBRARY}{text}\n{ENGINE}", "train.py"), ())
    found = run.settings.positions
    assert positions == (found and found.value)


@pytest.mark.parametrize(
    ("text", "code", "from_library"),
    [
        ("model = GPT()", "GPT()", False),
        ("model = GPT()\nmodel = model.to('cuda')", "GPT()", False),
        ("model = nn.Sequential(a, b).cuda()", "nn.Sequential(a, b)", False),
        ("model = build(args)", "build(args)", False),
        ("model = GPT2LMHeadModel(config)", "GPT2LMHeadModel(config)", True),
        ("model = Mine.from_pretrained(path)", "Mine.from_pretrained(path)", True),
        ("model = models[0]", None, None),
        ("model = accelerator.unwrap_model(model)", None, None),
    ],
)
def test_the_call_that_makes_the_model_is_found(
    text: str, code: str | None, from_library: bool | None
) -> None:
    made = parse_script(f"import deepspeed\n{LIBRARY}{text}\n{ENGINE}", "train.py").built_model
    assert (code, from_library) == ((made.code, made.from_library) if made else (None, None))
    assert made is None or made.line == 3


def test_accelerate_prepares_a_model_beside_its_optimizer() -> None:
    text = """from accelerate import Accelerator
optimizer = torch.optim.AdamW(ps)
model = GPT()
Accelerator().prepare(optimizer, model)
"""
    made = parse_script(text, "train.py").built_model
    assert made is not None
    assert ("GPT()", 3) == (made.code, made.line)
