"""Ranks are bound by the real numactl, where this host lets it."""

import os
import subprocess

import pytest

from zerowiz.probe.preflight.toolchain import try_core_binding

pytestmark = pytest.mark.nodes


def test_the_real_numactl_binds_or_says_why_not() -> None:
    found = try_core_binding(os.environ, 1)
    assert (found.cores is None) == (found.why_not is not None)
    if found.cores is not None:
        command = ("numactl", "-C", found.cores, "nproc")
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert str(len(os.sched_getaffinity(0))) == shown.strip()
