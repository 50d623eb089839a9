"""Describe this host for DeepSpeed's CPU accelerator: ranks that share its memory and cores."""

import re
from collections.abc import Mapping

from zerowiz.core.machine.host import Host, computes_bf16, computes_fp16
from zerowiz.core.machine.links import Interconnect, LinkClass
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.probe.recording.files import Files
from zerowiz.words import N_, _

# Linux, arch/x86/kernel/cpu/proc.c and arch/arm64/kernel/cpuinfo.c. All cores have the same: on
# arm64 the kernel shows what they have in common.
_FLAGS_LINE = re.compile(r"^(?:flags|Features)[ \t]*: (.*)$", re.MULTILINE)

# oneDNN, src/common/utils.cpp, getenv_string_user: the new name before the old one.
_MAX_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def cpu_machine(ranks: int, host: Host) -> Machine:
    """A machine without GPUs, where each rank has an equal share of the host's memory.

    Raises:
        UsageError: `ranks` is below 1.
    """
    if ranks < 1:
        raise UsageError(_("a CPU job has at least one rank, not {ranks}", ranks=ranks))
    gpus = tuple(
        Gpu(
            index=index,
            name=N_("CPU rank"),
            total_bytes=_share(host.total_bytes, ranks),
            free_bytes=_share(host.available_bytes, ranks),
        )
        for index in range(ranks)
    )
    return Machine(
        source=MachineSource.CPU,
        accelerator=Accelerator.CPU,
        gpus=gpus,
        interconnect=Interconnect(link_class=LinkClass.UNKNOWN),
        host=host,
    )


def with_number_formats(host: Host, files: Files, environ: Mapping[str, str]) -> Host:
    """The host, and which 16-bit formats its CPU computes; unknown where it shows no flags."""
    flags = parse_flags(files.text("proc/cpuinfo") or "")
    if not flags:
        return host
    max_isa = next(filter(None, map(environ.get, _MAX_ISA_VARIABLES)), "")
    return replace(
        host,
        computes_bf16=computes_bf16(flags, max_isa),
        computes_fp16=computes_fp16(flags, max_isa),
    )


def parse_flags(text: str) -> frozenset[str]:
    """The features of the first core in /proc/cpuinfo; none where this kernel lists none."""
    match = _FLAGS_LINE.search(text)
    return frozenset(match[1].split()) if match else frozenset()


def _share(size_bytes: int | None, ranks: int) -> int | None:
    return None if size_bytes is None else size_bytes // ranks
