"""A fake libnvidia-ml: the real pynvml runs over it, and a recording answers.

pynvml looks every C function up by name on `pynvml.nvmlLib` and passes `byref(struct)`; the fake
finds the struct at `arg._obj` and fills it. So pynvml's struct versions, error classes and traps
are all exercised.
"""

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MACHINES = Path(__file__).parent / "machines"

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, GPU_IS_LOST = 0, 2, 3, 15

# C symbol -> the recording's key, for calls that fill plain numbers.
NUMBERS = {
    "nvmlDeviceGetCudaComputeCapability": "CudaComputeCapability",
    "nvmlDeviceGetMigMode": "MigMode",
    "nvmlDeviceGetMaxPcieLinkGeneration": "MaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth": "CurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth": "MaxPcieLinkWidth",
}
TEXTS = {"nvmlDeviceGetName": "Name", "nvmlDeviceGetUUID": "UUID"}
STRUCTS = {
    "nvmlDeviceGetPciInfo_v3": "PciInfo",
    "nvmlDeviceGetMemoryInfo": "MemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2": "MemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfoV": "FabricV2",
}
LINK_NUMBERS = {
    "nvmlDeviceGetNvLinkState": "state",
    "nvmlDeviceGetNvLinkRemoteDeviceType": "RemoteDeviceType",
}
FIELDS = {91: "LINK_COUNT", 165: "GET_STATE"}
UNION = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal"}
P2P_INDICES = {0: "read", 1: "write", 2: "nvlink", 3: "atomics", 4: "pci"}

Recording = dict[str, Any]


def read_recording(name: str) -> Recording:
    """The raw NVML answers of a real host, such as `h200-x4`."""
    text = (MACHINES / f"nvml-calls-{name}.json").read_text(encoding="utf-8")
    recording: Recording = json.loads(text)
    return recording


class FakeNvmlLib:
    """The C library's function table, fed by a recording.

    Args:
        recording: Raw answers; a test may edit them first.
        init_code: What `nvmlInitWithFlags` returns.
        missing: C functions that this driver does not have.
        dead: GPUs, by index, and the code that every call on them returns.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        init_code: int = SUCCESS,
        missing: frozenset[str] = frozenset(),
        dead: dict[int, int] | None = None,
    ) -> None:
        self.recording = recording
        self.init_code = init_code
        self.missing = missing
        self.dead = dead or {}
        self.open_sessions = 0
        self.called: list[str] = []

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes would find it."""
        answer = self._find(symbol)
        if answer is None or symbol in self.missing:
            raise AttributeError(symbol)

        def function(*args: Any) -> Any:
            self.called.append(symbol)
            return answer(*args)

        return function  # a plain function: pynvml sets `restype` on it

    def _find(self, symbol: str) -> Callable[..., Any] | None:
        own: dict[str, Callable[..., Any]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlErrorString": lambda code: f"error {code}".encode(),
            "nvmlDeviceGetCount_v2": self._count,
            "nvmlDeviceGetHandleByIndex_v2": self._handle,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceGetNvLinkRemotePciInfo_v2": self._remote_pci,
            "nvmlDeviceGetP2PStatus": self._p2p,
        }
        kinds: tuple[tuple[dict[str, str], Callable[..., Any]], ...] = (
            (NUMBERS, self._numbers),
            (TEXTS, self._text),
            (STRUCTS, self._struct),
            (LINK_NUMBERS, self._link_number),
        )
        for table, answer in kinds:
            if symbol in table:
                return lambda handle, *args: answer(handle, table[symbol], *args)
        return own.get(symbol)

    def _init(self, _flags: int) -> int:
        self.open_sessions += self.init_code == SUCCESS
        return self.init_code

    def _shutdown(self) -> int:
        self.open_sessions -= 1
        return SUCCESS

    def _count(self, out: Any) -> int:
        out._obj.value = self.recording["nvmlDeviceGetCount"]["ok"]
        return SUCCESS

    def _handle(self, index: Any, out: Any) -> int:
        if index.value in self.dead:
            return self.dead[index.value]
        ctypes.c_void_p.from_buffer(out._obj).value = index.value + 1  # no handle is NULL
        return SUCCESS

    def _index(self, handle: Any) -> int:
        address = ctypes.cast(handle, ctypes.c_void_p).value
        assert address is not None
        return address - 1

    def _device(self, handle: Any) -> Any:
        return self.recording["devices"][self._index(handle)]

    def _numbers(self, handle: Any, key: str, *outs: Any) -> int:
        answer = self._device(handle)[key]
        if "err" in answer:
            return int(answer["err"])
        values = answer["ok"] if isinstance(answer["ok"], list) else [answer["ok"]]
        for out, value in zip(outs, values, strict=True):
            out._obj.value = value
        return SUCCESS

    def _text(self, handle: Any, key: str, buffer: Any, _size: Any) -> int:
        answer = self._device(handle)[key]
        if "err" in answer:
            return int(answer["err"])
        value = answer["ok"]
        buffer.value = value.encode("utf-8", "surrogateescape")
        return SUCCESS

    def _struct(self, handle: Any, key: str, out: Any) -> int:
        return self._fill(self._device(handle)[key], out)

    def _fill(self, answer: Any, out: Any) -> int:
        if "err" in answer:
            return int(answer["err"])
        for name, value in answer["ok"].items():
            if isinstance(value, list):
                getattr(out._obj, name)[:] = value
            else:
                setattr(out._obj, name, value.encode() if isinstance(value, str) else value)
        return SUCCESS

    def _links(self, handle: Any) -> Any:
        return self._device(handle)["nvlink"]

    def _link_number(self, handle: Any, key: str, link: int, out: Any) -> int:
        links = self._links(handle)
        answer = links[link][key] if link < len(links) else {"err": INVALID_ARGUMENT}
        if "err" in answer:
            return int(answer["err"])
        out._obj.value = answer["ok"]
        return SUCCESS

    def _remote_pci(self, handle: Any, link: int, out: Any) -> int:
        return self._fill(self._links(handle)[link]["RemotePciInfo"], out)

    def _field_values(self, handle: Any, _count: Any, out: Any) -> int:
        for item in out._obj:
            answer = self._field(handle, item.fieldId, item.scopeId)
            item.nvmlReturn, item.valueType = answer["ret"], answer["type"]
            if answer["ret"] == SUCCESS:
                setattr(item.value, UNION[answer["type"]], answer["val"])
        return SUCCESS

    def _field(self, handle: Any, field: int, scope: int) -> Any:
        name = FIELDS[field]
        whole = self._device(handle)["fields"]["ok"]
        if name in whole:
            return whole[name]
        links = self._links(handle)
        if scope >= len(links) or "f" not in links[scope]:
            return {"ret": NOT_SUPPORTED, "type": 0, "val": None}
        return links[scope]["f"]["ok"][name]

    def _p2p(self, handle: Any, peer: Any, index: int, out: Any) -> int:
        pair = f"{self._index(handle)}-{self._index(peer)}"
        answer = self.recording["pairs"][pair][P2P_INDICES[index]]
        if "err" in answer:
            return int(answer["err"])
        out._obj.value = answer["ok"]
        return SUCCESS
