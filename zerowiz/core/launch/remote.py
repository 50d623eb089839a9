"""Plan a launch over a hostfile: what DeepSpeed's own launchers need that they do not say.

Three of them reach other nodes from one head. pdsh hands a command line to the shell of each node;
Open MPI and MPICH start the ranks themselves, without a shell between.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.launch.env import Carried, for_shell, is_secret, keep_here, render_env
from zerowiz.core.launch.plan import Launcher
from zerowiz.errors import UsageError

# ssh_config(5): a node that vanished is given up after so many questions, so far apart; without
# them `ssh` waits for it until the kernel gives up, after two hours. The first value that ssh is
# given counts, so a person's own options stand before these.
ALIVE_EVERY_S = 5
ALIVE_TRIES = 3
KEEPALIVE = f"-o ServerAliveInterval={ALIVE_EVERY_S} -o ServerAliveCountMax={ALIVE_TRIES}"

# Where each launcher takes more options of `ssh` from: pdsh(1), ORTE's plm/rsh component (4.1),
# Hydra's bootstrap (4.0).
_SSH_OPTIONS: Mapping[Launcher, str] = {
    Launcher.PDSH: "PDSH_SSH_ARGS_APPEND",
    Launcher.OPENMPI: "OMPI_MCA_plm_rsh_args",
    Launcher.MPICH: "HYDRA_LAUNCHER_EXTRA_ARGS",
}

# deepspeed/launcher/runner.py, EXPORT_ENVS and export_envs of the CUDA accelerator (0.19.8).
_EXPORTED = ("MLFLOW", "MV2", "NCCL", "PYTHON", "UCX")
# multinode_runner.py, add_export (0.19.8): anything else gets `"` around it.
_PLAIN = re.compile(r"[\w@%+=:,./-]*")


class HostLaunch(Struct, frozen=True, kw_only=True):
    """What a launch over a hostfile adds to the command and to its environment."""

    options: tuple[str, ...]
    """DeepSpeed's, before the script."""
    env: Mapping[str, str]
    """For DeepSpeed itself, here."""
    notes: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Variables that DeepSpeed itself must not see: it would garble them, or show a secret."""
    env_text: str = ""
    """The file that DS_ENV_FILE names."""


def plan_host_launch(
    launcher: Launcher,
    hostfile: str,
    carried: Carried,
    environ: Mapping[str, str],
    *,
    env_file: str,
    master_addr: str | None,
    master_port: int,
) -> HostLaunch:
    """The options and the environment of a job whose nodes a hostfile names.

    Args:
        launcher: Which of DeepSpeed's.
        hostfile: Its path.
        carried: The variables of the ranks.
        environ: The caller's environment.
        env_file: Absolute path of the file of variables.
        master_addr: Address of the first node, as the others reach it; None lets DeepSpeed ask
            that node, which says the first address that it has.
        master_port: Where the ranks meet there.
    """
    options: tuple[str, ...] = ("--hostfile", hostfile, "--launcher", launcher.value)
    if master_addr is not None:
        options += ("--master_addr", master_addr)
    env = {"DS_ENV_FILE": env_file, **_keepalive(launcher, environ)}
    shown = _would_show(environ, carried)
    carried = keep_here(carried, shown)
    if launcher is Launcher.PDSH:
        carried = for_shell(carried)
        text = render_env(carried)
        return HostLaunch(
            options=options, env=env, env_text=text, without=shown, notes=carried.notes
        )
    values = {**carried.exact, "MASTER_PORT": str(master_port)}
    if master_addr is not None:
        values["MASTER_ADDR"] = master_addr
    seen = {name: value for name, value in environ.items() if name not in shown} | values
    garbled = {name: seen[name] for name in sorted(seen) if _is_garbled(name, seen[name])}
    words = _MPI_WORDS[launcher](seen, [name for name in values if name not in garbled], garbled)
    return HostLaunch(
        options=(*options, f"--launcher_args={shlex.join(words)}") if words else options,
        env={**{name: values[name] for name in values if name not in garbled}, **env},
        without=(*shown, *garbled),
        notes=carried.notes,
    )


def _keepalive(launcher: Launcher, environ: Mapping[str, str]) -> dict[str, str]:
    name = _SSH_OPTIONS[launcher]
    return {name: f"{environ.get(name, '')} {KEEPALIVE}".strip()}


def _would_show(environ: Mapping[str, str], carried: Carried) -> tuple[str, ...]:
    """Secrets that DeepSpeed puts into a command line unasked."""
    sent = (name for name, value in environ.items() if value and name.startswith(_EXPORTED))
    return tuple(sorted(name for name in sent if is_secret(name) and name not in carried.asked))


def _is_garbled(name: str, value: str) -> bool:
    """Whether DeepSpeed would send it with quotes that no shell takes off again."""
    return name.startswith(_EXPORTED) and _PLAIN.fullmatch(value) is None


def _openmpi_words(
    seen: Mapping[str, str], names: Iterable[str], garbled: Mapping[str, str]
) -> list[str]:
    # DeepSpeed names eth0, and MPI_Init dies where a node has none; an empty list is Open MPI's own
    # choice (tried with 4.1.4).
    words = ["--mca", "btl_tcp_if_include", seen.get("OMPI_MCA_btl_tcp_if_include", "")]
    for name in names:
        # Without its value, which Open MPI reads here: nothing of it stands in a process list.
        # What DeepSpeed sends as well would stand there twice.
        words += [] if name.startswith(_EXPORTED) else ["-x", name]
    for name, value in garbled.items():
        words += ["-x", f"{name}={value}"]
    return words


def _mpich_words(
    _seen: Mapping[str, str], _names: Iterable[str], garbled: Mapping[str, str]
) -> list[str]:
    # Hydra takes the whole environment along.
    return [word for name, value in garbled.items() for word in ("-genv", name, value)]


_MPI_WORDS: Mapping[
    Launcher, Callable[[Mapping[str, str], Iterable[str], Mapping[str, str]], list[str]]
] = {Launcher.OPENMPI: _openmpi_words, Launcher.MPICH: _mpich_words}


def quote_words(launcher: Launcher, words: Sequence[str]) -> tuple[str, ...]:
    """The words after what DeepSpeed takes for the script, so that the ranks get them as they are.

    PDSHRunner (deepspeed/launcher/multinode_runner.py, 0.19.8) puts `"` around a word with a space,
    escapes `"` in it and nothing else, and leaves every other word to the shell of the node.
    """
    if launcher is not Launcher.PDSH:
        return tuple(words)
    return tuple(_for_pdsh(word) for word in words)


def quote_script(launcher: Launcher, path: str) -> str:
    """What DeepSpeed takes for the script: PDSHRunner leaves it to the shell as it is."""
    return shlex.quote(path).replace("%", "%%") if launcher is Launcher.PDSH else path


def _for_pdsh(word: str) -> str:
    quoted = re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word)
    # pdsh(1): `%h`, `%u` and `%n` stand for something, also inside quotes; `%%` is a `%`.
    return quoted.replace("%", "%%")


def refuse_place(launcher: Launcher, places: Mapping[str, str]) -> None:
    """Refuse paths that DeepSpeed puts bare into the command of a node.

    Args:
        launcher: Which of DeepSpeed's.
        places: By what they are: the working folder, the interpreter.

    Raises:
        UsageError: One would be split or read as something else.
    """
    for what, path in places.items():
        if shlex.quote(path) != path or (launcher is Launcher.PDSH and "%" in path):
            raise UsageError(
                f"{what} `{path}`: DeepSpeed's {launcher} launcher breaks on these characters",
                "move it to a path of letters, digits and `._-/`",
            )
