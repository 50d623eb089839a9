"""Plan a launch over a hostfile: options, variables and quoting for DeepSpeed's own launchers.

Three of them reach other nodes from one head node. pdsh passes a command line to the shell of each
node. Open MPI and MPICH start the ranks themselves, without a shell.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.launch.env import RankEnv, for_pdsh, is_secret, render_env, without_shown
from zerowiz.core.launch.plan import Launcher
from zerowiz.errors import UsageError
from zerowiz.words import _

# ssh_config(5): `ssh` gives up a node that does not answer after so many messages with this
# interval. Without the options it waits until the kernel gives up, after two hours. The first value
# of an option counts, so a person's own options stand before these.
ALIVE_EVERY_S = 5
ALIVE_TRIES = 3
KEEPALIVE = f"-o ServerAliveInterval={ALIVE_EVERY_S} -o ServerAliveCountMax={ALIVE_TRIES}"

# The variable from which each launcher takes options of `ssh`: pdsh(1), ORTE's plm/rsh component
# (4.1), Hydra's bootstrap (4.0).
_SSH_OPTIONS: Mapping[Launcher, str] = {
    Launcher.PDSH: "PDSH_SSH_ARGS_APPEND",
    Launcher.OPENMPI: "OMPI_MCA_plm_rsh_args",
    Launcher.MPICH: "HYDRA_LAUNCHER_EXTRA_ARGS",
}

# deepspeed/launcher/launch.py (0.19.8) sets these for its ranks, and `worker/rank.py` knows them by
# it. Of a job that zerowiz itself runs in they must not reach ranks that mpirun starts.
LAUNCHERS_OWN = ("CROSS_RANK", "CROSS_SIZE")
# deepspeed/launcher/runner.py, EXPORT_ENVS and export_envs of the CUDA accelerator (0.19.8).
_EXPORTED = ("MLFLOW", "MV2", "NCCL", "PYTHON", "UCX")
# multinode_runner.py, add_export (0.19.8): any other value gets `"` around it.
_PLAIN = re.compile(r"[\w@%+=:,./-]*")


class HostLaunch(Struct, frozen=True, kw_only=True):
    """What a launch over a hostfile adds to the command and to its environment."""

    options: tuple[str, ...]
    """DeepSpeed's, before the script."""
    env: Mapping[str, str]
    """For DeepSpeed itself, on this host."""
    notes: tuple[str, ...]
    """For a person to read."""
    without: tuple[str, ...] = ()
    """Variables that DeepSpeed itself must not see: it would garble them, or show a secret."""
    env_text: str = ""
    """The content of the file that DS_ENV_FILE names."""


def plan_host_launch(
    launcher: Launcher,
    hostfile: str,
    rank_env: RankEnv,
    environ: Mapping[str, str],
    *,
    env_file: str,
    master_addr: str | None,
    master_port: int,
) -> HostLaunch:
    """The options and the environment of a job whose nodes a hostfile names.

    Args:
        launcher: Which of DeepSpeed's launchers.
        hostfile: Its path.
        rank_env: The variables of the ranks.
        environ: The caller's environment.
        env_file: The absolute path of the file of variables.
        master_addr: The address by which the other nodes reach the first one. With None DeepSpeed
            takes the first address that the node has.
        master_port: The port of torch's rendezvous on that node.
    """
    options: tuple[str, ...] = ("--hostfile", hostfile, "--launcher", launcher.value)
    if master_addr is not None:
        options += ("--master_addr", master_addr)
    env = {"DS_ENV_FILE": env_file, **_keepalive(launcher, environ)}
    shown = _list_shown_secrets(environ, rank_env)
    rank_env = without_shown(rank_env, shown)
    if launcher is Launcher.PDSH:
        rank_env = for_pdsh(rank_env)
        text = render_env(rank_env)
        return HostLaunch(
            options=options, env=env, env_text=text, without=shown, notes=rank_env.notes
        )
    values = {**rank_env.exact, "MASTER_PORT": str(master_port)}
    if master_addr is not None:
        values["MASTER_ADDR"] = master_addr
    seen = {name: value for name, value in environ.items() if name not in shown} | values
    garbled = {name: seen[name] for name in sorted(seen) if _is_garbled(name, seen[name])}
    stale = tuple(name for name in LAUNCHERS_OWN if name in environ)
    words = _MPI_WORDS[launcher](seen, [name for name in values if name not in garbled], garbled)
    return HostLaunch(
        options=(*options, f"--launcher_args={shlex.join(words)}") if words else options,
        env={**{name: values[name] for name in values if name not in garbled}, **env},
        without=(*shown, *garbled, *stale),
        notes=rank_env.notes,
    )


def _keepalive(launcher: Launcher, environ: Mapping[str, str]) -> dict[str, str]:
    name = _SSH_OPTIONS[launcher]
    return {name: f"{environ.get(name, '')} {KEEPALIVE}".strip()}


def _list_shown_secrets(environ: Mapping[str, str], rank_env: RankEnv) -> tuple[str, ...]:
    """The secrets that DeepSpeed would put into a command line by itself."""
    sent = (name for name, value in environ.items() if value and name.startswith(_EXPORTED))
    secrets = (name for name in sent if is_secret(name))
    return tuple(sorted(name for name in secrets if name not in rank_env.user_names))


def _is_garbled(name: str, value: str) -> bool:
    """Whether DeepSpeed would send the value with quotes that no shell removes."""
    return name.startswith(_EXPORTED) and _PLAIN.fullmatch(value) is None


def _openmpi_words(
    seen: Mapping[str, str], names: Iterable[str], garbled: Mapping[str, str]
) -> list[str]:
    # DeepSpeed names eth0, and MPI_Init fails on a node without it; with an empty list Open MPI
    # chooses itself (tried with 4.1.4).
    words = ["--mca", "btl_tcp_if_include", seen.get("OMPI_MCA_btl_tcp_if_include", "")]
    for name in names:
        # Only the name: Open MPI reads the value on this host, so no process list shows it. What
        # DeepSpeed sends as well would be sent twice.
        words += [] if name.startswith(_EXPORTED) else ["-x", name]
    for name, value in garbled.items():
        words += ["-x", f"{name}={value}"]
    return words


def _mpich_words(
    _seen: Mapping[str, str], _names: Iterable[str], garbled: Mapping[str, str]
) -> list[str]:
    # Hydra sends the whole environment.
    return [word for name, value in garbled.items() for word in ("-genv", name, value)]


_MPI_WORDS: Mapping[
    Launcher, Callable[[Mapping[str, str], Iterable[str], Mapping[str, str]], list[str]]
] = {Launcher.OPENMPI: _openmpi_words, Launcher.MPICH: _mpich_words}


def quote_words(launcher: Launcher, words: Sequence[str]) -> tuple[str, ...]:
    """The words after the script, quoted so that the ranks get them unchanged.

    PDSHRunner (deepspeed/launcher/multinode_runner.py, 0.19.8) puts `"` around a word with a space
    and escapes only `"` in it. It passes every other word to the shell of the node as it is.
    """
    if launcher is not Launcher.PDSH:
        return tuple(words)
    return tuple(_for_pdsh(word) for word in words)


def quote_script(launcher: Launcher, path: str) -> str:
    """The path of the script, quoted: PDSHRunner passes it to the shell as it is."""
    return shlex.quote(path).replace("%", "%%") if launcher is Launcher.PDSH else path


def _for_pdsh(word: str) -> str:
    quoted = re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word)
    # pdsh(1): it replaces `%h`, `%u` and `%n`, also inside quotes; `%%` is a `%`.
    return quoted.replace("%", "%%")


def refuse_unsafe_paths(launcher: Launcher, paths: Mapping[str, str]) -> None:
    """Refuse paths that DeepSpeed puts unquoted into the command of a node.

    Args:
        launcher: Which of DeepSpeed's launchers.
        paths: By what they are, such as the working folder, the interpreter.

    Raises:
        UsageError: A shell would split one of them, or replace a part of it.
    """
    for what, path in paths.items():
        if shlex.quote(path) != path or (launcher is Launcher.PDSH and "%" in path):
            raise UsageError(
                _(
                    "{what} `{path}`: DeepSpeed's {launcher} launcher cannot handle these "
                    "characters",
                    what=what,
                    path=path,
                    launcher=launcher,
                ),
                _("move it to a path with letters, digits and `._-/` only"),
            )
