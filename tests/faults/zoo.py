"""A folder of what people have, and of what nobody should have: scripts, configs, machines, models."""

import json
import os
import shutil
from pathlib import Path

from cli.harness import CONFIG_ARGUMENTS, HF_IN_CODE, HF_LITERAL, HF_PARSER, UNREACHABLE
from paths import MODELS, TESTS
from recorded import described

LEVELS = 20_000
"""As deep as no file of a person is, and deeper than Python's stack."""

SCRIPTS = {
    "train.py": HF_PARSER,
    "in_code.py": HF_IN_CODE,
    "literal.py": HF_LITERAL,
    "engine.py": CONFIG_ARGUMENTS,
}
BAD_SCRIPTS = {
    "unreachable.py": UNREACHABLE,
    "empty.py": "",
    "half.py": HF_PARSER[:200],
    "tabs.py": "if 1:\n\tx = 1\n        y = 2\n",
    "deep.py": "x = " + "(" * LEVELS + ")" * LEVELS,
    "deep_call.py": "x = " + "f(" * 500 + ")" * 500,
    "long_sum.py": "x = " + "1 + " * LEVELS + "1",
    "number.py": "x = " + "9" * 5000,
    "nul.py": "x = 1\0\n",
    "shell.py": "set -e\npython train.py\n",
    "job.sh": "#!/bin/bash\ndeepspeed train.py --deepspeed ds.json\n",
    "odd name\n\x1b[31m.py": HF_PARSER,
    "-dash.py": HF_PARSER,
}
DEEP = "[" * LEVELS + "]" * LEVELS
BAD_TEXTS = {
    "empty.json": "",
    "list.json": "[]",
    "null.json": "null",
    "half.json": '{"zero_optimization": {"stage": 2, "overlap_comm"',
    "deep.json": DEEP,
    "deep_objects.json": '{"a":' * LEVELS + "1" + "}" * LEVELS,
    "number.json": '{"train_batch_size": ' + "9" * 5000 + "}",
    "nan.json": '{"gradient_clipping": NaN, "steps_per_print": 1e999, "zero_optimization": -Infinity}',
    "long_line.json": '{"' + "a" * 200_000 + '": 1}',
    "colours.json": '{"\\u001b[31mred [/red]": "\\u001b]0;title\\u0007"}',
    "deep.yaml": "a: " + DEEP,
    "aliases.yaml": "a: &a [x, x]\n"
    + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "itself.yaml": "a: &a\n  b: *a\n",
    "axolotl.yaml": "base_model: x/y\ndeepspeed:\nsequence_len: -1\nmicro_batch_size: many\n",
    "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
    "deepspeed_config: 7\nnum_processes: -1\n",
    "answers.toml": 'model = "7b"\nseq-len = "long"\n',
    "hosts": "localhost slots=2\n",
    "bad_hosts": "node1 slots=four\n",
    "many_hosts": "".join(f"node{n} slots=8\n" for n in range(3000)),
    "prices.json": '{"H200": -3}',
}
BAD_MODELS = {
    "broken_model": '{"model_type": ',
    "list_model": "[]",
    "deep_model": DEEP,
    "number_model": '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
    "zero_model": '{"model_type": "llama", "hidden_size": 0, "num_hidden_layers": -1, "vocab_size": "x"}',
    "unknown_model": '{"model_type": "nobody_knows", "hidden_size": 64}',
    "endless_model": '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, '
    '"num_hidden_layers": 1000000000, "num_attention_heads": 1, "vocab_size": 100}',
}
ODD = (
    "fifo",
    "fifo.json",
    "folder",
    "folder.json",
    "folder.py",
    "dangling",
    "loop",
    "binary",
    "nowhere",
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "/proc/kmsg")

GOOD_CONFIGS = (
    "trainer_zero2_with_everything_auto.json",
    "plain_warmup.json",
    "hjson_with_comments.json",
)
BROKEN_CONFIGS = ("offload_at_stage_0.json", "duplicate_stage.json", "stage_four.json", "amp.json")
MACHINES = (
    "h200-x4.json",
    "synthetic/gb10.json",
    "synthetic/a100-x8-lost-gpu.json",
    "synthetic/a100-mig.json",
)
"""Of recordings: what `machine --save` writes of them."""
GOOD_MODELS = ("qwen2.5-0.5b", "mixtral-8x7b-2l", "t5-base")


def build_zoo(folder: Path) -> None:
    """Fill a folder, and put programs beside it that reach no other host."""
    folder.mkdir()
    for name, text in {**SCRIPTS, **BAD_SCRIPTS, **BAD_TEXTS}.items():
        (folder / name).write_text(text)
    for name, text in BAD_MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(text)
    _copy_good(folder)
    _make_odd(folder)
    programs = folder.parent / "programs"
    programs.mkdir()
    for name in ("ssh", "pdsh"):
        (programs / name).write_text("#!/bin/sh\necho 'a stand-in was started' >&2\nexit 1\n")
        (programs / name).chmod(0o755)


def _copy_good(folder: Path) -> None:
    """What other tests use."""
    for name in GOOD_MODELS:
        shutil.copytree(MODELS / name, folder / name)
    good = [TESTS / "lint" / "good" / name for name in GOOD_CONFIGS]
    broken = [TESTS / "lint" / "broken" / name for name in BROKEN_CONFIGS]
    for path in (*good, *broken):
        shutil.copy(path, folder)
    for name in MACHINES:
        # All in one folder, as a person has them.
        written = Path(described(name.removesuffix(".json"), folder / "described"))
        shutil.copy(written, folder)
    shutil.rmtree(folder / "described")


def _make_odd(folder: Path) -> None:
    """Files that are no texts, and names that are none."""
    gpus = [{"index": 0, "name": "H200 [/red]\x1b[31m\n", "free_bytes": 80 * 2**30}]
    odd = {"schema_version": 1, "machine": {"gpus": gpus}}
    (folder / "odd-name.json").write_text(json.dumps(odd))
    for name in ("fifo", "fifo.json"):
        os.mkfifo(folder / name)
    for name in ("folder", "folder.json", "folder.py"):
        (folder / name).mkdir()
    (folder / "dangling").symlink_to("gone")
    (folder / "loop").symlink_to("loop")
    (folder / "binary").write_bytes(bytes(range(256)) * 300)
    (folder / "utf16.json").write_bytes('{"zero_optimization": {"stage": 2}}'.encode("utf-16"))
    (folder / os.fsdecode(b"caf\xe9.py")).write_text(HF_PARSER)
