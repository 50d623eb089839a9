"""Say what the copies of zerowiz on several nodes tell each other, through files they all see.

Node 0 plans; the others do as it says. A launcher may give no name that the next job has not too,
so files of an earlier one can lie there, and a clock is not trusted. Hence each side proves that it
speaks now:

1. node 0 makes a folder named by a fresh word, and writes that word into `call.json`;
2. every other node answers each call that it sees: `hello-RANK.json` in the folder of the call,
   with a fresh word of its own and what its node has;
3. node 0, once each has answered its own call, writes `attempt-1.json` there, with their words;
4. a node takes an attempt only with its own word in it, and looks for one in the folders of the
   calls that it answered before it answers another.

A later attempt is `attempt-2.json` and so on: again a plan, or the end.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.codec import decode, encode
from zerowiz.core.launch.node import slots_of
from zerowiz.core.machine.types import Machine
from zerowiz.core.values import Count
from zerowiz.errors import UsageError, ZerowizError

SCHEMA_VERSION = 1

CALL = "call.json"

_Value = TypeVar("_Value")


class RendezvousCall(Struct, frozen=True, kw_only=True):
    """Node 0 is here."""

    word: str
    """Names the folder in which it waits for answers."""


class Join(Struct, frozen=True, kw_only=True):
    """A node is here, and what it has."""

    rank: Count
    host: str
    word: str
    zerowiz_version: str
    machine: Machine


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """All that a node needs to start its own ranks."""

    zerowiz_version: str
    script: str
    script_args: tuple[str, ...]
    """With the words that hand the config over."""
    env: Mapping[str, str]
    """What the config's way into the script adds to the environment."""
    config_path: str
    config_sha256: str
    strategy: str
    master_addr: str
    master_port: Count
    slots: tuple[tuple[Count, ...], ...]
    """The devices of each node, by its rank, as DeepSpeed calls them."""
    hostfile: str
    run_folder: str


class AttemptSpec(Struct, frozen=True, kw_only=True):
    """What node 0 says: a plan, or the end."""

    heard: tuple[str, ...]
    """The words of those that are meant."""
    spec: LaunchSpec | None = None
    end: Count | None = None
    """The status that every copy returns."""
    why: str = ""


def job_folder(output_dir: str, job_key: str) -> str:
    """Where the copies of this job meet."""
    return f"{output_dir or '.'}/.zerowiz/jobs/{job_key}"


def join_name(rank: int) -> str:
    """The file in which this node answers."""
    return f"hello-{rank}.json"


def attempt_name(number: int) -> str:
    """The file of this attempt; they count from 1."""
    return f"attempt-{number}.json"


def encode_file(value: RendezvousCall | Join | AttemptSpec) -> str:
    """The text of its file."""
    content = {"schema_version": SCHEMA_VERSION, "value": encode(value)}
    return json.dumps(content, indent=2) + "\n"


def decode_file(kind: type[_Value], text: str, name: str) -> _Value:
    """The value in this file.

    Raises:
        UsageError: Another version of zerowiz wrote it, or it is none.
    """
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"`{name}` is not of this version of zerowiz")
    return decode(kind, content.get("value"), name)


def refuse_unlike(joins: Sequence[Join]) -> None:
    """See that these nodes can train together.

    DeepSpeed numbers the ranks of a node by `rank % ranks of the node`, which is wrong where nodes
    have different counts (deepspeed/launcher/launch.py, main, 0.19.8).

    Raises:
        ZerowizError: They have different releases of zerowiz, or different counts of devices.
    """
    first = joins[0]
    for other in joins[1:]:
        if other.zerowiz_version != first.zerowiz_version:
            raise ZerowizError(
                f"zerowiz is {first.zerowiz_version} on `{first.host}`,"
                f" {other.zerowiz_version} on `{other.host}`",
                "install the same on every node",
            )
        if other.machine.accelerator is not first.machine.accelerator:
            raise ZerowizError(
                f"`{first.host}` trains on {first.machine.accelerator},"
                f" `{other.host}` on {other.machine.accelerator}",
                "ask for one of them with `$accelerator`",
            )
        own, others = len(slots_of(first.machine)), len(slots_of(other.machine))
        if own != others:
            raise ZerowizError(
                f"`{first.host}` has {own} devices for the job, `{other.host}` has {others}",
                "DeepSpeed needs the same count on every node: `$gpus` takes fewer",
            )
