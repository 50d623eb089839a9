"""What people run most, by command: each line runs as it stands beside a script `train.py`."""

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "init": (
        ("zerowiz init", "answer a few questions, and launch"),
        ("zerowiz init train.py", "the same for this script"),
        ("zerowiz init --yes --model 7b --machine 8xH100", "write a config, and ask nothing"),
    ),
    "plan": (
        ("zerowiz plan train.py", "plan with the script's own settings"),
        ("zerowiz plan --model llama-3.1-8b --machine 8xH100", "a model and a machine by name"),
        ("zerowiz plan --model 7b --machine 4xA100-40 --method lora --limits", "how much fits"),
        ("zerowiz plan --model 7b --machine all", "which machine to take"),
    ),
    "launch": (
        ("zerowiz launch --dry-run train.py", "show the config and the command, and do nothing"),
        ("zerowiz launch train.py", "write the config, and train"),
        ("zerowiz launch --stage zero2 train.py", "with a strategy of your own choice"),
    ),
    "machine": (
        ("zerowiz machine", "what is here"),
        ("zerowiz machine --machine p5.48xlarge", "what a spec or an instance means"),
        ("zerowiz machine --save node.json", "keep it, to plan elsewhere with --machine node.json"),
    ),
    "measure": (
        ("zerowiz measure --model 10m --seq-len 64", "train a model of this size for some steps"),
        ("zerowiz measure train.py", "run the script for some steps"),
    ),
    "report": (("zerowiz report", "of the last launch in this folder"),),
    "check": (
        ("zerowiz check .", "every config of this folder"),
        ("zerowiz check --fix ds_config.json", "apply the safe fixes"),
        ("zerowiz check --script train.py ds_config.json", "hold it against the script, too"),
    ),
    "doctor": (
        ("zerowiz doctor train.py", "what would end this job before it starts"),
        ("zerowiz doctor --stage zero3 --offload optimizer train.py", "the same for a choice"),
    ),
}
