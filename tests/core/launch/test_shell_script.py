"""Which line of a shell script starts the training."""

import pytest

from zerowiz.core.launch.sbatch import ShellCommand, find_training_command, is_shell_script

HEAD = "#!/bin/bash\n#SBATCH --nodes=1\nexport A=1\npython prepare.py\npip install torch\n"
TORCHRUN = ("torchrun", "--nproc_per_node", "2", "train.py", "--batch", "3")
QUOTED = ("torchrun", "train.py", "--pad", "<pad>", "--sep", "|", ">")


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        (HEAD + "torchrun --nproc_per_node 2 train.py --batch 3\n", 6, TORCHRUN),
        (
            HEAD + "srun torchrun --nproc_per_node 2 \\\n  train.py \\\n  --batch 3 # it\n",
            6,
            TORCHRUN,
        ),
        (HEAD + "A=1 torchrun --nproc_per_node 2 train.py --batch 3 2>&1 | tee log", 6, TORCHRUN),
        (HEAD + "python train.py; echo done\n", 6, ("python", "train.py")),
        (HEAD + "python -m pkg.train > log\n", 6, ("python", "-m", "pkg.train")),
        (HEAD + "torchrun --unknown train.py\n", 6, ("torchrun", "--unknown", "train.py")),
        (HEAD + "torchrun --nproc_per_node 2 train.py \\\n  --batch 3 \\\n", 6, TORCHRUN),
        ("torchrun train.py --pad '<pad>' --sep \"|\" '>' >log\n", 1, QUOTED),
        ("make data&&torchrun train.py --pad \\<pad\\> --sep '|' \">\"|tee log\n", 1, QUOTED),
        ("torchrun train.py --url=a#b # it's\n", 1, ("torchrun", "train.py", "--url=a#b")),
        ("python train.py 'a;' && python eval.py\n", 1, ("python", "train.py", "a;")),
        ("# python a.py \\\ntorchrun --nproc_per_node 2 train.py --batch 3\n", 2, TORCHRUN),
        ("echo 'a\nb'\ndeepspeed $ARGS train.py\n", 3, ("deepspeed", "$ARGS", "train.py")),
    ],
)
def test_the_line_of_the_training_is_found(text: str, number: int, words: tuple[str, ...]) -> None:
    command = find_training_command(text)
    assert command is not None
    assert (number, words) == (command.line, command.words)


@pytest.mark.parametrize(
    "text", ["", "echo hi\n", "# torchrun train.py\n", "python -m pip install x\n"]
)
def test_a_script_without_one_has_none(text: str) -> None:
    assert find_training_command(text) is None


def test_what_the_shell_expands_is_known() -> None:
    command = ShellCommand(line=1, launcher="torchrun", words=("torchrun", "$ARGS", "train.py"))
    assert command.expands


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("run.sh", "", True),
        ("run", "#!/usr/bin/env bash\n", True),
        ("job.sbatch", "", True),
        ("train.py", "#!/usr/bin/env python\n", False),
        ("train", "import torch\n", False),
    ],
)
def test_a_shell_script_is_known_by_its_name_or_its_first_line(
    path: str, text: str, expected: bool
) -> None:
    assert expected is is_shell_script(path, text)
