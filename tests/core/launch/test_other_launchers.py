"""What stands in the place of another launcher, or of a program that starts its own ranks."""

import shlex

import pytest

from zerowiz.core.launch.other_launchers import (
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


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("swift sft --model m", "pass its arguments in a YAML file: `zerowiz init my.yaml`"),
        ("llamafactory-cli train a.yaml", "pass its YAML file: `zerowiz init a.yaml`"),
        ("trl dpo --beta 0.1", "launch its module: `zerowiz launch -m trl.scripts.dpo --beta 0.1`"),
    ],
)
def test_a_program_that_starts_ranks_has_its_way(words: str, way: str) -> None:
    program, *others = words.split()
    assert way == name_way(program, others)
