r"""Choose the variables that the ranks of other nodes get, and write the file of them.

DeepSpeed's runner hands over what starts with a few names of its own, and the lines of two files
named `.deepspeed_env`; DS_ENV_FILE gives these another name, and an absolute one replaces both
(deepspeed/launcher/runner.py and multinode_runner.py, 0.19.8). So the persons' files are read
here, and one file is written that holds their lines and ours.

With pdsh a line becomes `export NAME=VALUE; ` for the shell of the other node: add_export strips
the value, and puts `"` around it when it holds anything else than `\w@%+=:,./-`, escaping nothing.
pdsh itself replaces `%h`, `%u` and `%n`.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.values import replace

# What reaches another node of the caller's environment: settings of the libraries that train.
_FAMILIES = (
    "ACCELERATE_",
    "CUDA_",
    "DEEPSPEED_",
    "DS_",
    "FI_",
    "GLOO_",
    "HF_",
    "HUGGINGFACE_",
    "HUGGING_FACE_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "TOKENIZERS_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRANSFORMERS_",
    "TRITON_",
    "WANDB_",
    "ZEROWIZ_",
)
# The nodes share the interpreter's path, so they share what finds its programs and libraries.
_NAMES = ("LD_LIBRARY_PATH", "PATH")
# A node's own: which of its GPUs, and the name of the file that is written here.
_NEVER = ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE")
# What zerowiz and its config need; a line of the person's cannot be meant for this job.
_OURS = ("ACCELERATE_", "DS_ACCELERATOR", "ZEROWIZ_")

_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvText(Struct, frozen=True, kw_only=True):
    """One of the person's files of variables."""

    name: str
    text: str


class Carried(Struct, frozen=True, kw_only=True):
    """The variables of the ranks, and what a person should know about them."""

    values: Mapping[str, str]
    """Exactly so."""
    typed: Mapping[str, str]
    """The person's own lines; under pdsh the shell of the node reads them, `$NAME` and all."""
    asked: frozenset[str] = frozenset()
    """Whatever has a line of the person's."""
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> dict[str, str]:
        """All of them, for a launcher that has no shell between."""
        return {**self.values, **self.typed}


def merge_env(
    environ: Mapping[str, str], planned: Mapping[str, str], files: Sequence[EnvText] = ()
) -> Carried:
    """The variables of a job on many nodes.

    A person's line wins over the caller's environment and over what zerowiz would set, but not
    over what this very job depends on.

    Args:
        environ: The caller's environment.
        planned: What zerowiz sets for the job.
        files: The person's files, the later one winning.
    """
    values = {name: value for name, value in environ.items() if _travels(name)}
    values |= planned
    typed: dict[str, str] = {}
    asked: set[str] = set()
    notes: list[str] = []
    for file in files:
        for number, line in enumerate(file.text.splitlines(), start=1):
            read = _read_line(line)
            if read is None:
                continue
            why = _why_not(read, planned)
            if why is not None:
                notes.append(f"`{file.name}` line {number} is left out: {why}")
                continue
            values.pop(read.name, None)
            typed.pop(read.name, None)
            (values if read.as_it_stands else typed)[read.name] = read.value
            asked.add(read.name)
    return Carried(values=values, typed=typed, asked=frozenset(asked), notes=tuple(notes))


def keep_here(carried: Carried, names: Collection[str]) -> Carried:
    """Without these, which a command line would show; a note names each."""
    notes = (
        f"`{name}` stays here: the process list of every node would show it; a line in"
        " `.deepspeed_env` sends it all the same"
        for name in names
    )
    values = {name: value for name, value in carried.values.items() if name not in names}
    return replace(carried, values=values, notes=(*carried.notes, *notes))


def for_shell(carried: Carried) -> Carried:
    """What can pass through pdsh: no secret that nobody asked to send, no line break."""
    secrets = [name for name, value in carried.values.items() if value and is_secret(name)]
    carried = keep_here(carried, [name for name in secrets if name not in carried.asked])
    notes = list(carried.notes)
    values = {}
    for name, value in carried.values.items():
        if any(mark in value for mark in "\n\r\0"):
            notes.append(f"`{name}` stays here: DeepSpeed cannot send a value with a line break")
        else:
            values[name] = value
    return replace(carried, values=values, notes=tuple(notes))


def render_env(carried: Carried) -> str:
    """The file for pdsh: the shell of the other node sees each value as it is."""
    own = {name: escape(value) for name, value in carried.values.items()}
    lines = {**own, **carried.typed}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def escape(value: str) -> str:
    """A value as it has to stand between the `"` that DeepSpeed puts around it, for pdsh."""
    return re.sub(r'([\\$`"])', r"\\\1", value).replace("%", "%%")


def is_secret(name: str) -> bool:
    """Whether a variable's last word says that nobody else is to see it."""
    return _SECRET.search(name) is not None


def _travels(name: str) -> bool:
    chosen = name in _NAMES or name.startswith(_FAMILIES)
    return chosen and name not in _NEVER and _NAME.fullmatch(name) is not None


class _Line(Struct, frozen=True, kw_only=True):
    name: str
    value: str
    """Between `"` for a shell, or as it stands."""
    as_it_stands: bool


def _read_line(line: str) -> _Line | None:
    """A line of the person's; None where it is blank or a comment.

    DeepSpeed's runner dies of a blank line, a comment ends the command of the node, and a value
    between quotes loses them to those that DeepSpeed adds.
    """
    words = line.strip()
    if not words or words.startswith("#"):
        return None
    name, equals, value = words.removeprefix("export ").partition("=")
    name, value = name.strip(), value.strip()
    quote = value[0] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else ""
    if quote:
        value = value[1:-1]
    literal = quote == "'"
    if not literal:
        # A `"` or a last backslash would end the quotes that DeepSpeed puts around the value.
        value = re.sub(r'\\.|["\\]', lambda m: m[0] if len(m[0]) > 1 else f"\\{m[0]}", value)
    return _Line(name=name if equals else "", value=value, as_it_stands=literal)


def _why_not(line: _Line, planned: Mapping[str, str]) -> str | None:
    if _NAME.fullmatch(line.name) is None:
        return "it is no `NAME=VALUE`, and DeepSpeed would die of it"
    if line.name in planned and line.name.startswith(_OURS):
        return f"this job sets `{line.name}` itself"
    if not line.as_it_stands and line.value.count("`") % 2:
        return "its backtick never closes"
    return None
