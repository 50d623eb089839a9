from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from recorded import NOT_SUPPORTED, Install, library, names, recording, without

from zerowiz.errors import UsageError
from zerowiz.probe.host_files import FileAnswers, RecordedFiles
from zerowiz.probe.machine import nvml_calls
from zerowiz.probe.machine.nvml import NoDriverError, read_gpus
from zerowiz.probe.machine.nvml_calls import Session, Unavailable, open_session
from zerowiz.probe.machine_recording import UNION_MEMBERS, CallLog, Replay, World, decode_recording

FUNCTION_NOT_FOUND = 13
UNHEARD_OF = 777  # a code that pynvml has no words for: it asks the library
INIT = {"nvmlInitWithFlags(0)": {"ok": None}}
ONE_GPU = {**INIT, "nvmlDeviceGetHandleByIndex_v2(0)": {"ok": "gpu0"}}
NO_FILES = RecordedFiles(answers=FileAnswers())

each_recording = pytest.mark.parametrize("name", names())


def meaning(answer: Any) -> Any:
    """An answer without what a struct leaves out: zeros, and the version that pynvml sets."""
    match answer:
        case {"ok": dict() as struct}:
            return {k: each for k, each in struct.items() if k != "version" and any_of(each)}
        case {"ok": [dict(), *_] as structs}:
            return [{k: each for k, each in struct.items() if each} for struct in structs]
        case _:
            return answer


def any_of(value: Any) -> bool:
    return any(value) if isinstance(value, list) else bool(value)


def first_gpu(session: Session) -> object:
    handle = session.ask(nvml_calls.handle, 0)
    assert not isinstance(handle, Unavailable)
    return handle


def ask_of(table: Any, read: Callable[..., Any], *args: object) -> tuple[Any, Any]:
    """What a driver answers for its first GPU, and what the record of that answers."""
    log: dict[str, Any] = {}
    with open_session(table, log) as session:
        live = session.ask(read, first_gpu(session), *args)
    with open_session(log) as session:
        return live, session.ask(read, first_gpu(session), *args)


def test_pynvml_still_has_the_two_private_names_that_a_replay_leans_on() -> None:
    assert hasattr(pynvml, "nvmlLib")
    assert dict is type(pynvml._nvmlGetFunctionPointer_cache)


@each_recording
def test_a_log_over_a_replay_gives_the_same_answers_back(name: str, driver: Install) -> None:
    content = recording(name)
    world = decode_recording(content, name)
    driver(Replay(content["nvml"]))
    log: dict[str, Any] = {}
    live = read_gpus(World(files=world.files, environ={}, log=log))
    missing = {"err": FUNCTION_NOT_FOUND}
    expected = {call: meaning(content["nvml"].get(call, missing)) for call in log}
    assert expected == {call: meaning(answer) for call, answer in log.items()}
    assert live == read_gpus(World(files=world.files, environ={}, replay=log))


@each_recording
def test_a_log_holds_every_call_that_was_answered_and_no_other(name: str) -> None:
    """Of a recorded machine; people wrote more down for a synthetic one."""
    content = recording(name)
    world = decode_recording(content, name)
    log: dict[str, Any] = {}
    read_gpus(World(files=world.files, environ={}, replay=content["nvml"], log=log))
    unasked = set(content["nvml"]) - set(log)
    assert set() == unasked or content["kind"] == "synthetic"


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_a_list_of_processes_of_any_length_comes_back(count: int) -> None:
    found = [{"pid": 100 + place, "usedGpuMemory": 2**40 + place} for place in range(count)]
    table = {**ONE_GPU, "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)": {"ok": found}}
    live, replayed = ask_of(table, nvml_calls.processes)
    assert [(p["pid"], p["usedGpuMemory"]) for p in found] == [(p.pid, p.used_bytes) for p in live]
    assert live == replayed


def test_the_log_of_a_list_has_each_struct_whole_and_no_spare_room() -> None:
    call = "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)"
    found = [{"pid": 1, "usedGpuMemory": 2, "gpuInstanceId": 3, "computeInstanceId": 4}, {"pid": 5}]
    log: dict[str, Any] = {}
    with open_session({**ONE_GPU, call: {"ok": found}}, log) as session:
        session.ask(nvml_calls.processes, first_gpu(session))
    assert {"ok": found} == log[call]


def test_an_array_in_a_struct_comes_back() -> None:
    domain = {"clusterUuid": list(range(1, 17)), "cliqueId": 5, "state": 3}
    table = {**ONE_GPU, "nvmlDeviceGetGpuFabricInfoV(gpu0)": {"ok": domain}}
    live, replayed = ask_of(table, nvml_calls.fabric)
    assert nvml_calls.Fabric(is_ready=True, clique=f"{bytes(range(1, 17)).hex()}.5") == live
    assert live == replayed


class FieldTable:
    """A driver that answers one field, in one member of the union."""

    def __init__(self, member: str, number: float, code: int = 0) -> None:
        self.member, self.number, self.code = member, number, code

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        """The C function of this name."""
        if symbol != "nvmlDeviceGetFieldValues":
            return getattr(Replay(ONE_GPU), symbol)  # type: ignore[no-any-return]
        return self.fill

    def fill(self, _handle: object, _count: object, reference: Any) -> int:
        [item] = reference._obj
        item.nvmlReturn, item.valueType = self.code, UNION_MEMBERS.index(self.member)
        setattr(item.value, self.member, self.number)
        return 0


FIELDS = [
    ("dVal", 2.75, 2),
    ("uiVal", 2**32 - 1, 2**32 - 1),
    ("ulVal", 2**63, 2**63),
    ("ullVal", 2**64 - 1, 2**64 - 1),
    ("sllVal", -5, -5),
    ("siVal", -(2**31), -(2**31)),
    ("usVal", 65535, 65535),
]


def test_every_member_of_the_union_is_tried() -> None:
    assert list(UNION_MEMBERS) == [member for member, _, _ in FIELDS]


@pytest.mark.parametrize(("member", "number", "expected"), FIELDS)
def test_a_field_value_of_every_type_comes_back(
    member: str, number: float, expected: int, driver: Install
) -> None:
    driver(FieldTable(member, number))
    log: dict[str, Any] = {}
    with open_session(None, log) as session:
        live = session.ask(nvml_calls.read_field, first_gpu(session), 91, 4)
    assert {"ok": number} == log["nvmlDeviceGetFieldValues(gpu0, 91, 4)"]
    with open_session(log) as session:
        assert expected == live == session.ask(nvml_calls.read_field, first_gpu(session), 91, 4)


def test_a_field_value_has_a_return_code_of_its_own(driver: Install) -> None:
    driver(FieldTable("uiVal", 7, code=NOT_SUPPORTED))
    log: dict[str, Any] = {}
    with open_session(None, log) as session:
        live = session.ask(nvml_calls.read_field, first_gpu(session), 91, 0)
    assert {"err": NOT_SUPPORTED} == log["nvmlDeviceGetFieldValues(gpu0, 91, 0)"]
    with open_session(log) as session:
        replayed = session.ask(nvml_calls.read_field, first_gpu(session), 91, 0)
    assert Unavailable(code=NOT_SUPPORTED, name="NVMLError_NotSupported") == live
    assert live == replayed


def test_a_slice_is_named_after_its_gpu(driver: Install) -> None:
    driver(library("synthetic/a100-mig"))
    log: dict[str, Any] = {}
    read_gpus(World(files=NO_FILES, environ={}, log=log))
    handles = {call: answer for call, answer in log.items() if "HandleByIndex" in call}
    assert {"ok": "gpu1.mig2"} == handles["nvmlDeviceGetMigDeviceHandleByIndex(gpu1, 2)"]
    assert {"ok": "gpu0"} == handles["nvmlDeviceGetHandleByIndex_v2(0)"]
    assert "ok" in log["nvmlDeviceGetMemoryInfo_v2(gpu1.mig2)"]


def test_two_gpus_keep_apart_whatever_a_recording_calls_them() -> None:
    table = {
        **INIT,
        "nvmlDeviceGetHandleByIndex_v2(0)": {"ok": "here"},
        "nvmlDeviceGetHandleByIndex_v2(1)": {"ok": "there"},
        "nvmlDeviceGetTopologyCommonAncestor(here, there)": {"ok": 10},
        "nvmlDeviceGetTopologyCommonAncestor(there, here)": {"ok": 20},
    }
    with open_session(table) as session:
        here, there = session.ask(nvml_calls.handle, 0), session.ask(nvml_calls.handle, 1)
        assert 10 == session.ask(nvml_calls.common_ancestor, here, there)
        assert 20 == session.ask(nvml_calls.common_ancestor, there, here)


@pytest.mark.parametrize(
    ("read", "call", "value"),
    [
        (nvml_calls.name, "nvmlDeviceGetName(gpu0)", "H\udcff200"),
        (nvml_calls.bus_id, "nvmlDeviceGetPciInfo_v3(gpu0)", {"busId": "00\udcff"}),
    ],
)
def test_bytes_that_are_no_text_come_back(
    read: Callable[..., str], call: str, value: object
) -> None:
    log: dict[str, Any] = {}
    with open_session({**ONE_GPU, call: {"ok": value}}, log) as session:
        live = session.ask(read, first_gpu(session))
    assert {"ok": value} == log[call]
    with open_session(log) as session:
        assert live == session.ask(read, first_gpu(session))
    assert Unavailable(code=None, name="UnicodeDecodeError") == live


class Older:
    """A driver without one C function."""

    def __init__(self, table: Replay, symbol: str) -> None:
        self.table, self.symbol = table, symbol

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes would find it."""
        if symbol == self.symbol:
            raise AttributeError(symbol)
        return getattr(self.table, symbol)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("read", "symbol", "code"),
    [
        (nvml_calls.uuid, "nvmlDeviceGetUUID", FUNCTION_NOT_FOUND),
        (nvml_calls.memory_v2, "nvmlDeviceGetMemoryInfo_v2", FUNCTION_NOT_FOUND),
        # pynvml makes an error without a code of it there: NVMLLibraryMismatchError.
        (nvml_calls.processes, "nvmlDeviceGetComputeRunningProcesses_v3", None),
    ],
)
def test_a_function_that_the_driver_lacks_is_not_found_live_and_replayed(
    read: Callable[..., Any], symbol: str, code: int | None, driver: Install
) -> None:
    driver(Older(library("h200-x1"), symbol))
    log: dict[str, Any] = {}
    with open_session(None, log) as session:
        live = session.ask(read, first_gpu(session))
    assert isinstance(live, Unavailable)
    assert code == live.code
    assert [] == [call for call in log if call.startswith(f"{symbol}(")]
    with open_session(log) as session:
        assert live == session.ask(read, first_gpu(session))


def test_an_error_has_words_under_a_replay_and_under_a_log(driver: Install) -> None:
    with open_session(ONE_GPU, {}):
        assert f"NVML error {UNHEARD_OF}" == str(pynvml.NVMLError(UNHEARD_OF))
    driver(Replay(ONE_GPU))
    log: dict[str, Any] = {}
    with open_session(None, log):
        assert f"NVML error {UNHEARD_OF}" == str(pynvml.NVMLError(UNHEARD_OF))
    assert INIT == log


def test_a_call_without_inputs_and_outputs_is_logged() -> None:
    log: dict[str, Any] = {}
    assert 0 == CallLog(Replay({"nvmlNothing()": {"ok": None}}), log).nvmlNothing()
    assert {"nvmlNothing()": {"ok": None}} == log


NAME, HANDLE = "nvmlDeviceGetName(gpu0)", "nvmlDeviceGetHandleByIndex_v2(0)"
PAIR, COUNT = "nvmlDeviceGetCudaComputeCapability(gpu0)", "nvmlDeviceGetCount_v2()"
FIELD, PCI = "nvmlDeviceGetFieldValues(gpu0, 91, 0)", "nvmlDeviceGetPciInfo_v3(gpu0)"
LIST = "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)"
FABRIC, MEMORY = "nvmlDeviceGetGpuFabricInfoV(gpu0)", "nvmlDeviceGetMemoryInfo_v2(gpu0)"


def oks(*values: object) -> list[object]:
    return [{"ok": value} for value in values]


def errs(*codes: object) -> list[object]:
    return [{"err": code} for code in codes]


NO_ANSWER: list[object] = [5, {}, None, True, [], "ok", "err"]
OF_ANOTHER: list[object] = oks([{"x": {}}])
BROKEN: dict[str, list[object]] = {
    "nvmlInitWithFlags(0)": [5, *errs("x")],
    COUNT: [*NO_ANSWER, *OF_ANOTHER, *oks("x", None, 1.5, -1, 2**32)],
    NAME: [*NO_ANSWER, *OF_ANOTHER, *oks(7, None, "x" * 500, "a\0b", "\ud800")],
    PCI: [*errs(0, -1, "x", None, [], 1.0, float("inf"), 2**31), *oks(1, {"busId": 1})],
    PAIR: [*OF_ANOTHER, *oks(9, [9], [9, 0, 0], ["9", "0"], None)],
    HANDLE: [*NO_ANSWER, *OF_ANOTHER, *oks(0, None, [], {})],
    FIELD: [*NO_ANSWER, *OF_ANOTHER, *errs(0, "x"), *oks("x", 2**64, float("inf"), float("nan"))],
    LIST: [*NO_ANSWER, *oks(1, None, [1], "x", [{"pid": -1}], [{"pid": "x"}], [{"pid": {}}])],
    MEMORY: oks(*({"total": total} for total in ("x", -1, 2**64, None, 1.5))),
    FABRIC: oks(*({"clusterUuid": cluster} for cluster in ([1], 1, "x", ["x"] * 16))),
}


@pytest.mark.parametrize(
    ("call", "answer"), [(call, answer) for call in BROKEN for answer in BROKEN[call]]
)
def test_an_answer_that_does_not_fit_its_call_is_one_line_that_names_it(
    call: str, answer: object
) -> None:
    content = recording("h200-x1")
    table = {**content["nvml"], call: answer}
    with pytest.raises(UsageError) as caught:
        read_gpus(World(files=NO_FILES, environ={}, replay=table))
    assert f"the recorded answer of `{call}` is broken: " == caught.value.message.replace(
        f"{answer!r:.60}", ""
    )
    assert "\n" not in caught.value.message


def held() -> tuple[object, object, int]:
    """What pynvml keeps between sessions."""
    return pynvml.nvmlLib, pynvml._nvmlGetFunctionPointer_cache, pynvml._nvmlLib_refcount


def test_a_replay_leaves_pynvml_as_it_was(driver: Install) -> None:
    library, cache = object(), {"nvmlInit": "a pointer"}
    driver(library)
    pynvml._nvmlGetFunctionPointer_cache.update(cache)
    before = held()
    with open_session(ONE_GPU) as session:
        first_gpu(session)
        assert pynvml.nvmlLib is not library
    assert before == held()
    assert cache == before[1]


def test_a_replay_leaves_pynvml_as_it_was_when_its_body_raises() -> None:
    before = held()
    with pytest.raises(ZeroDivisionError), open_session(ONE_GPU, {}):
        raise ZeroDivisionError
    assert before == held()


def test_a_replay_that_does_not_start_leaves_pynvml_as_it_was() -> None:
    before = held()
    with (
        pytest.raises(NoDriverError),
        open_session({"nvmlInitWithFlags(0)": {"err": 9}}),
    ):
        pass
    with pytest.raises(UsageError), open_session({"nvmlInitWithFlags(0)": 9}):
        pass
    assert before == held()


def test_a_log_of_a_driver_leaves_its_library_in_place(driver: Install) -> None:
    library = Replay(ONE_GPU)
    driver(library)
    with open_session(None, {}) as session:
        first_gpu(session)
        assert 1 == pynvml._nvmlLib_refcount
    assert library is pynvml.nvmlLib
    assert 0 == pynvml._nvmlLib_refcount


def test_the_pointers_that_a_log_hands_out_are_not_kept(driver: Install) -> None:
    driver(Replay(ONE_GPU))
    log: dict[str, Any] = {}
    with open_session(None, log) as session:
        first_gpu(session)
    log.clear()
    with open_session() as session:
        first_gpu(session)
    assert {} == log


def test_a_replay_within_a_session_answers_for_itself_alone() -> None:
    with open_session({**ONE_GPU, NAME: {"ok": "outer"}}) as outer:
        handle = first_gpu(outer)
        with open_session({**ONE_GPU, NAME: {"ok": "inner"}}) as inner:
            assert "inner" == inner.ask(nvml_calls.name, first_gpu(inner))
            assert 2 == pynvml._nvmlLib_refcount
        assert "outer" == outer.ask(nvml_calls.name, handle)
    assert 0 == pynvml._nvmlLib_refcount


def test_one_session_after_another_reads_its_own_record() -> None:
    for name in ("h200-x1", "h200-x4", "h200-x1"):
        nvml = recording(name)["nvml"]
        with open_session(nvml) as session:
            assert nvml[COUNT]["ok"] == session.ask(nvml_calls.count)


class Stubborn(Older):
    """A driver that does not shut down."""

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name."""
        return (lambda: 999) if symbol == self.symbol else getattr(self.table, symbol)


def test_a_driver_that_does_not_shut_down_is_no_error(driver: Install) -> None:
    driver(Stubborn(library("h200-x1"), "nvmlShutdown"))
    with open_session() as session:
        assert 1 == session.ask(nvml_calls.count)


def test_a_recording_without_a_function_is_an_older_driver() -> None:
    nvml = without(recording("h200-x1"), "nvmlDeviceGetUUID")["nvml"]
    with open_session(nvml) as session:
        assert session.maybe(nvml_calls.uuid, first_gpu(session)) is None
