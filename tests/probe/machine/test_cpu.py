"""Which 16-bit formats a CPU computes, read from what its kernel shows."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_host import build_host

from zerowiz.core.machine.types import Host
from zerowiz.probe.machine.host import parse_flags, with_number_formats

# /proc/cpuinfo of one core each, without the lines that nobody reads. AMD's of 2021 (Zen 3) and of
# 2024 (Zen 5), Intel's of 2023 (Sapphire Rapids), Arm's Neoverse N1 and V1, IBM's POWER9.
ZEN3 = """\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC 7763 64-Core Processor
flags		: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl cpuid extd_apicid pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm cmp_legacy svm cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw topoext fsgsbase bmi1 avx2 smep bmi2 invpcid rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec xgetbv1 xsaves clzero xsaveerptr arat umip vaes vpclmulqdq rdpid fsrm
bugs		: sysret_ss_attrs null_seg spectre_v1 spectre_v2
"""
ZEN5 = """\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC
flags		: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 syscall nx lm pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 avx f16c bmi1 avx2 bmi2 avx512f avx512dq adx avx512ifma avx512cd avx512bw avx512vl avx_vnni avx512_bf16 avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_vp2intersect
"""
SAPPHIRE_RAPIDS = """\
processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags		: fpu vme de pse sse sse2 lm avx f16c avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx_vnni avx512_bf16 avx512vbmi avx512_vnni amx_bf16 avx512_fp16 amx_tile amx_int8
"""
NEOVERSE_N1 = """\
processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer	: 0x41
"""
NEOVERSE_V1 = """\
processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng
CPU implementer	: 0x41
"""
POWER9 = """\
processor	: 0
cpu		: POWER9, altivec supported
clock		: 3800.000000MHz
"""


def formats(root: Path, cpuinfo: str | None, environ: Mapping[str, str]) -> tuple[object, object]:
    files = build_host(root, {} if cpuinfo is None else {"proc/cpuinfo": cpuinfo})
    host = with_number_formats(Host(cores=2), files, environ)
    assert 2 == host.cores
    return host.computes_bf16, host.computes_fp16


@pytest.mark.parametrize(
    ("cpuinfo", "bf16", "fp16"),
    [
        (ZEN3, False, False),
        (ZEN5, True, False),
        (SAPPHIRE_RAPIDS, True, True),
        (NEOVERSE_N1, False, None),
        (NEOVERSE_V1, True, None),
        (POWER9, None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_the_flags_tell_which_formats_a_cpu_computes(
    tmp_path: Path, cpuinfo: str | None, bf16: bool | None, fp16: bool | None
) -> None:
    assert (bf16, fp16) == formats(tmp_path, cpuinfo, {})


@pytest.mark.parametrize(
    ("environ", "bf16", "fp16"),
    [
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, False),
        ({"ONEDNN_MAX_CPU_ISA": "avx2"}, False, False),
        ({"DNNL_MAX_CPU_ISA": "AVX2"}, False, False),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "DNNL_MAX_CPU_ISA": "AVX2"}, True, True),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, False, False),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI_2"}, False, True),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True, False),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True, True),
        ({"ONEDNN_MAX_CPU_ISA": "nonsense"}, True, True),
        ({"ONEDNN_MAX_CPU_ISA": ""}, True, True),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, True, True),
    ],
)
def test_what_holds_onednn_to_older_instructions_takes_formats_away(
    tmp_path: Path, environ: dict[str, str], bf16: bool, fp16: bool
) -> None:
    assert (bf16, fp16) == formats(tmp_path, SAPPHIRE_RAPIDS, environ)


def test_a_cpu_is_given_no_format_that_it_lacks(tmp_path: Path) -> None:
    assert (False, False) == formats(tmp_path, ZEN3, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"})


def test_only_a_line_of_flags_is_read() -> None:
    assert frozenset() == parse_flags("vmx flags\t: bf16\nmodel name\t: bf16 flags : bf16\n")
