"""What people run most, by command: each line runs as it stands beside a script `train.py`."""

from collections.abc import Mapping

from zerowiz.words import _

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "init": (
        ("zerowiz init", _("answer a few questions, and launch")),
        ("zerowiz init train.py", _("the same for this script")),
        ("zerowiz init --yes --model 7b --machine 8xH100", _("write a config, and ask nothing")),
    ),
    "template": (
        ("zerowiz template first-run", _("a script for the Trainer, a small model and a text")),
        ("zerowiz template --loop engine first-run", _("a plain loop over DeepSpeed's engine")),
        ("zerowiz template", _("list the templates")),
    ),
    "plan": (
        ("zerowiz plan train.py", _("plan with the script's own settings")),
        ("zerowiz plan --model llama-3.1-8b --machine 8xH100", _("a model and a machine by name")),
        ("zerowiz plan --model 7b --machine 4xA100-40 --method lora --limits", _("how much fits")),
        ("zerowiz plan --model 7b --machine all", _("compare the machines that the job fits")),
    ),
    "launch": (
        (
            "zerowiz launch --dry-run train.py",
            _("show the config and the command, and start nothing"),
        ),
        ("zerowiz launch train.py", _("write the config, and train")),
        ("zerowiz launch --stage zero2 train.py", _("choose the strategy yourself")),
    ),
    "machine": (
        ("zerowiz machine", _("show this machine")),
        ("zerowiz machine --machine p5.48xlarge", _("show what a spec or an instance stands for")),
        (
            "zerowiz machine --save node.json",
            _("save it, to plan elsewhere with --machine node.json"),
        ),
    ),
    "measure": (
        (
            "zerowiz measure --model 10m --seq-len 64",
            _("train a model of this size for some steps"),
        ),
        ("zerowiz measure train.py", _("run the script for some steps")),
    ),
    "report": (("zerowiz report", _("compare the last launch in this folder with its plan")),),
    "check": (
        ("zerowiz check .", _("every config of this folder")),
        ("zerowiz check --fix ds_config.json", _("apply the safe fixes")),
        ("zerowiz check --script train.py ds_config.json", _("compare it with the script, too")),
    ),
    "doctor": (
        ("zerowiz doctor train.py", _("find what would make this job fail")),
        (
            "zerowiz doctor --stage zero3 --offload optimizer train.py",
            _("the same, with a strategy that you choose"),
        ),
    ),
}
