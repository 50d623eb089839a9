"""What stands in the place of another launcher, or of a program that starts its own ranks."""

import shlex

import pytest

from zerowiz.core.launch.other_launchers import (
    find_trainer,
    is_launcher,
    launch_instead,
    name_way,
)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("torchrun --nproc_per_node 8 train.py --lr 1", "train.py --lr 1"),
        ("torchrun --nproc_per_node=8 -m pkg.train --lr 1", "-m pkg.train --lr 1"),
        ("accelerate launch --config_file a.yaml train.py 'a b'", "train.py 'a b'"),
        ("bin/deepspeed --num_gpus 2 --module pkg.train", "--module pkg.train"),
        ("python3.12 -u train.py -m 2", "train.py -m 2"),
        ("python -m torch.distributed.run -m pkg.train", "-m pkg.train"),
        ("torchrun --nproc_per_node 8", "train.py"),
        ("torchrun train.py --hub_token mine", 'train.py --hub_token "$HUB_TOKEN"'),
    ],
)
def test_the_script_of_another_launcher_is_launched_instead(line: str, instead: str) -> None:
    words = shlex.split(line)
    assert is_launcher(words[0])
    assert f"zerowiz launch {instead}" == launch_instead(words)


@pytest.mark.parametrize("word", ["train.py", "./torchrun", "pkg/deepspeed", "python.py", "trl"])
def test_no_other_word_starts_a_launcher(word: str) -> None:
    assert not is_launcher(word)


# What a shell script trains with, where that starts ranks of its own.


@pytest.mark.parametrize(
    ("text", "way"),
    [
        (
            "NPROC_PER_NODE=8 swift sft --model m --deepspeed zero2",
            "pass its arguments in a YAML file: `zerowiz init my.yaml`",
        ),
        (
            "export A=1\nCUDA_VISIBLE_DEVICES=$GPUS \\\n  swift rlhf \\\n  runs/dpo.yaml > log 2>&1",
            "pass its arguments in a YAML file: `zerowiz init runs/dpo.yaml`",
        ),
        ("uv run axolotl train my.yml", "pass its YAML file: `zerowiz init my.yml`"),
        (
            "FORCE_TORCHRUN=1 llamafactory-cli train a.yaml",
            "pass its YAML file: `zerowiz init a.yaml`",
        ),
        (
            "srun -N 1 nohup trl dpo --beta 0.1",
            "launch its module: `zerowiz launch -m trl.scripts.dpo --beta 0.1`",
        ),
        # What trains nothing, or is no command.
        ("version=$(swift sft --help)\npip show trl\necho trl sft\n# swift sft", None),
        ("swift infer --model m\ntrl env\naxolotl preprocess my.yml\nllamafactory-cli", None),
        ("version=$(pip show deepspeed | grep Version)\ntorchrun train.py", None),
        ("echo 'it\nswift sft'", None),
    ],
)
def test_a_program_in_a_shell_script_is_found_with_its_way(text: str, way: str | None) -> None:
    found = find_trainer(text)
    assert way == (found and name_way(found[0], found[1:]))
