r"""Choose the environment variables for the ranks of other nodes, and write the file of them.

DeepSpeed's runner sends the variables whose names start with one of a few prefixes, and the lines
of two files named `.deepspeed_env`. DS_ENV_FILE gives these files another name; an absolute path in
it replaces both (deepspeed/launcher/runner.py and multinode_runner.py, 0.19.8). So zerowiz reads
the user's files, and writes one file with their lines and its own.

With pdsh a line becomes `export NAME=VALUE; ` for the shell of the other node. add_export strips
the value, and puts `"` around one that holds other characters than `\w@%+=:,./-`, without escaping
anything. pdsh itself replaces `%h`, `%u` and `%n`.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.values import replace
from zerowiz.words import _

# Variables of the caller's environment that are sent: settings of the libraries that train.
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
# The nodes share the interpreter's path, so they share the paths of its programs and libraries.
_NAMES = ("LD_LIBRARY_PATH", "PATH")
# Not for other nodes: the GPUs of this one, and the name of the file that is written here.
_NEVER = ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE")
# This job depends on zerowiz's value; a line of the user cannot be meant for this job.
_OURS = ("ACCELERATE_", "DS_ACCELERATOR", "ZEROWIZ_")

_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvText(Struct, frozen=True, kw_only=True):
    """One of the user's files of variables."""

    name: str
    text: str


class RankEnv(Struct, frozen=True, kw_only=True):
    """The environment variables for the ranks of other nodes."""

    values: Mapping[str, str]
    """By name; a rank gets exactly these values."""
    user_lines: Mapping[str, str]
    """The user's own lines; under pdsh the shell of the node expands `$NAME` in them."""
    user_names: frozenset[str] = frozenset()
    """The variables that have a line of the user's."""
    notes: tuple[str, ...] = ()
    """For a person to read."""

    @property
    def exact(self) -> dict[str, str]:
        """All variables, for a launcher that uses no shell."""
        return {**self.values, **self.user_lines}


def merge_env(
    environ: Mapping[str, str], planned: Mapping[str, str], files: Sequence[EnvText] = ()
) -> RankEnv:
    """The variables of a job on several nodes.

    A line of the user takes precedence over the caller's environment and over what zerowiz would
    set, but not over variables that this job depends on.

    Args:
        environ: The caller's environment.
        planned: The variables that zerowiz sets for the job.
        files: The user's files; a later one takes precedence.
    """
    values = {name: value for name, value in environ.items() if _is_sent(name)}
    values |= planned
    user_lines: dict[str, str] = {}
    user_names: set[str] = set()
    notes: list[str] = []
    for file in files:
        for number, line in enumerate(file.text.splitlines(), start=1):
            read = _read_line(line)
            if read is None:
                continue
            why = _why_not(read, planned)
            if why is not None:
                notes.append(
                    _(
                        "`{file}` line {number} is ignored: {why}",
                        file=file.name,
                        number=number,
                        why=why,
                    )
                )
                continue
            values.pop(read.name, None)
            user_lines.pop(read.name, None)
            (values if read.is_literal else user_lines)[read.name] = read.value
            user_names.add(read.name)
    return RankEnv(
        values=values,
        user_lines=user_lines,
        user_names=frozenset(user_names),
        notes=tuple(notes),
    )


def without_shown(env: RankEnv, names: Collection[str]) -> RankEnv:
    """The variables without these, which a command line would show; a note names each."""
    notes = (
        _(
            "`{name}` is not sent to the nodes, where every user could see it in the "
            "process list; to send it, add it to `.deepspeed_env`",
            name=name,
        )
        for name in names
    )
    values = {name: value for name, value in env.values.items() if name not in names}
    return replace(env, values=values, notes=(*env.notes, *notes))


def for_pdsh(env: RankEnv) -> RankEnv:
    """The variables that pdsh can send: no line breaks, and only secrets that the user lists."""
    secrets = [name for name, value in env.values.items() if value and is_secret(name)]
    env = without_shown(env, [name for name in secrets if name not in env.user_names])
    notes = list(env.notes)
    values = {}
    for name, value in env.values.items():
        if any(character in value for character in "\n\r\0"):
            notes.append(
                _(
                    "`{name}` is not sent to the nodes: DeepSpeed cannot send a value with "
                    "a line break",
                    name=name,
                )
            )
        else:
            values[name] = value
    return replace(env, values=values, notes=tuple(notes))


def render_env(env: RankEnv) -> str:
    """The file for pdsh; the shell of the other node gets each value as it is."""
    own = {name: escape(value) for name, value in env.values.items()}
    lines = {**own, **env.user_lines}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def escape(value: str) -> str:
    """A value, escaped for the `"` that DeepSpeed puts around it, and for pdsh."""
    return re.sub(r'([\\$`"])', r"\\\1", value).replace("%", "%%")


def is_secret(name: str) -> bool:
    """Whether the last word of a variable's name is that of a secret, such as TOKEN."""
    return _SECRET.search(name) is not None


def _is_sent(name: str) -> bool:
    chosen = name in _NAMES or name.startswith(_FAMILIES)
    return chosen and name not in _NEVER and _NAME.fullmatch(name) is not None


class _Line(Struct, frozen=True, kw_only=True):
    name: str
    value: str
    """Escaped for a shell within `"`, or literal."""
    is_literal: bool


def _read_line(line: str) -> _Line | None:
    """A line of the user's; None where it is blank or a comment.

    DeepSpeed's runner fails on a blank line, a comment would end the command of the node, and
    quotes around a value would close those that DeepSpeed adds.
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
        # A `"` or a last backslash would close the quotes that DeepSpeed puts around the value.
        value = re.sub(r'\\.|["\\]', lambda m: m[0] if len(m[0]) > 1 else f"\\{m[0]}", value)
    return _Line(name=name if equals else "", value=value, is_literal=literal)


def _why_not(line: _Line, planned: Mapping[str, str]) -> str | None:
    if _NAME.fullmatch(line.name) is None:
        return _("it is not `NAME=VALUE`, and DeepSpeed would fail on it")
    if line.name in planned and line.name.startswith(_OURS):
        return _("this job sets `{line}` itself", line=line.name)
    if not line.is_literal and line.value.count("`") % 2:
        return _("its backtick is not closed")
    return None
