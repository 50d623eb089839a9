"""Models read from folders, sizes, the local cache and a Hub that runs on a thread."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from hub import Answer, Hub, serving
from paths import MODELS

from zerowiz.core.model.types import Model, ModelSource
from zerowiz.errors import ExitCode, UsageError, ZerowizError
from zerowiz.probe.model.hf import cached_models, model_of, parse_config, read_config

CONFIG = (MODELS / "qwen2.5-0.5b" / "config.json").read_text()
PARAMS = json.loads((MODELS / "qwen2.5-0.5b" / "exact.json").read_text())["params"]
PATH = "/org/unknown-0.5B/resolve/main/config.json"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as running:
        yield running


@pytest.fixture
def environ(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my-qwen"
    path.mkdir()
    return path


def cache_config(hub_folder: Path, model_id: str, text: str = CONFIG) -> Path:
    """As huggingface_hub lays it out: `main` names a snapshot of links into `blobs`."""
    model = hub_folder / f"models--{model_id.replace('/', '--')}"
    snapshot = model / "snapshots" / "060db6499f32faf8b98477b0a26969ef7d8b9987"
    for path in (snapshot, model / "refs", model / "blobs"):
        path.mkdir(parents=True)
    (model / "blobs" / "18a6a3").write_text(text)
    (snapshot / "config.json").symlink_to("../../blobs/18a6a3")
    (model / "refs" / "main").write_text(snapshot.name)
    return snapshot


def read_model(text: str, *, environ: Mapping[str, str]) -> Model:
    return model_of(text, read_config(text, environ=environ))


def refuse(text: str, environ: Mapping[str, str]) -> ZerowizError:
    with pytest.raises(ZerowizError) as refused:
        read_model(text, environ=environ)
    lines = (refused.value.message, *refused.value.hints)
    assert not any("\n" in line for line in lines)
    return refused.value


# Folders and files


@pytest.mark.parametrize(
    ("file_name", "text", "expected"),
    [
        ("config.json", "{0}", "my-qwen"),
        ("config.json", ".", "my-qwen"),
        ("config.json", "{0}/config.json", "my-qwen"),
        ("tiny.json", "{0}/tiny.json", "tiny"),
    ],
)
def test_a_folder_or_its_config_is_read_and_has_a_name(
    file_name: str,
    text: str,
    expected: str,
    folder: Path,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / file_name).write_text(CONFIG)
    monkeypatch.chdir(folder)
    model = read_model(text.format(folder), environ=environ)
    assert (expected, PARAMS, ModelSource.CONFIG) == (model.name, model.params, model.source)


def test_a_snapshot_folder_is_named_after_its_model(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    snapshot = cache_config(tmp_path, "org/unknown-0.5B")
    assert "unknown-0.5B" == read_model(str(snapshot), environ=environ).name


@pytest.mark.parametrize("text", ["gpt2", "org/unknown-0.5B", "7b"])
def test_a_folder_that_exists_wins_over_an_id_and_a_size(
    text: str, tmp_path: Path, environ: dict[str, str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / text).mkdir(parents=True)
    (tmp_path / text / "config.json").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert PARAMS == read_model(text, environ=environ).params
    assert [] == hub.asked


def test_a_folder_without_a_model_does_not_hide_a_size(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert 7_000_000_000 == read_model("7b", environ=environ).params


ADAPTER = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"})
TAKES = "`$model` takes a folder"
# The files of a folder, what is asked for in it, what the error says of it, and some hint.
NO_MODEL = {
    "no config": ({"a.bin": ""}, "", "`{0}` has no config.json", TAKES),
    "checkpoints": (
        {"checkpoint-500/config.json": CONFIG},
        "",
        "`{0}` has no config.json",
        "did you mean `$model {0}/checkpoint-500`?",
    ),
    **{
        f"adapter{suffix}": (
            {"adapter_config.json": ADAPTER},
            suffix,
            f"`{{0}}{suffix}` is an adapter, not a model",
            "plan with its base model: `$model Qwen/Qwen3-8B $method lora`",
        )
        for suffix in ("", "/adapter_config.json")
    },
    "script": ({"train.py": "import torch"}, "/train.py", "is a file, but not a model", TAKES),
    "DeepSpeed's": (
        {"ds.json": '{"zero_optimization": {}}'},
        "/ds.json",
        "it has `zero_optimization`",
        TAKES,
    ),
    "no key": (
        {"empty.json": "{}"},
        "/empty.json",
        "is not the config.json of a model: it has no key",
        TAKES,
    ),
}


@pytest.mark.parametrize(("files", "asked", "message", "hint"), NO_MODEL.values(), ids=NO_MODEL)
def test_what_holds_no_model_is_told_as_what_it_is(
    files: Mapping[str, str],
    asked: str,
    message: str,
    hint: str,
    folder: Path,
    environ: dict[str, str],
) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    error = refuse(f"{folder}{asked}", environ)
    assert message.format(folder) in error.message
    assert [] != [line for line in error.hints if line.startswith(hint.format(folder))]
    assert ExitCode.USAGE == error.exit_code


def test_a_path_too_long_to_exist_is_an_error_in_one_line(
    folder: Path, environ: dict[str, str]
) -> None:
    error = refuse(str(folder / ("x" * 300)), environ)
    assert error.message.endswith(": File name too long")


# Python 3.13 has a message of its own for it.
TRAILING_COMMA = (
    "Illegal trailing comma before end of object at line 2 column 8"
    if sys.version_info >= (3, 13)
    else "Expecting property name enclosed in double quotes at line 3 column 1"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{\n "a": 1,\n}',
            f"`c.json` is not JSON: {TRAILING_COMMA}",
        ),
        (b"", "`c.json` is not JSON: Expecting value at line 1 column 1"),
        (b"[1]", "`c.json` is not a JSON object"),
        (
            b'{"hidden_size": ' + b"9" * 5000 + b"}",
            "`c.json` is not JSON: a number has too many digits",
        ),
        (b"\x93NUMPY", "`c.json` is a binary file, not text"),
        (b"[" * 200_000, "`c.json` is not JSON: too many levels"),
    ],
)
def test_a_broken_config_is_refused_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_config("`c.json`", content)
    assert refused.value.message.startswith(message)


# Sizes and nonsense


def test_a_size_is_read_without_a_network(environ: dict[str, str], hub: Hub) -> None:
    model = read_model("1.5B", environ=environ)
    assert ("1.5B", 1_500_000_000, ModelSource.SIZE) == (model.name, model.params, model.source)
    assert [] == hub.asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, f"there is no folder `{text}` on this machine")
            for text in ("./absent", "../absent", "/absent", "~/absent")
        ),
        *(
            (text, f"`{text}` is not a folder, a hub id or a size")
            for text in ("a/b/c", "my model", "org/", "a--b", "-7b", "*", "70", "1.5")
        ),
        *((text, "`$model` is empty") for text in ("", " ")),
    ],
)
def test_what_is_no_path_no_id_and_no_size_never_reaches_the_network(
    text: str, message: str, environ: dict[str, str], hub: Hub
) -> None:
    error = refuse(text, environ)
    assert message == error.message
    assert (ExitCode.USAGE, []) == (error.exit_code, hub.asked)


def test_a_number_without_its_unit_is_asked_for_as_a_size(environ: dict[str, str]) -> None:
    assert "did you mean `$model 70b`?" == refuse("70", environ).hints[0]
    assert not any("did you mean" in hint for hint in refuse("-7b", environ).hints)


# The local cache


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"HF_HUB_CACHE": "{0}/c"}, "c"),
        ({"HUGGINGFACE_HUB_CACHE": "{0}/c", "HF_HOME": "{0}/other"}, "c"),
        ({"HF_HOME": "{0}/home"}, "home/hub"),
        ({"XDG_CACHE_HOME": "{0}/xdg"}, "xdg/huggingface/hub"),
        ({"HOME": "{0}"}, ".cache/huggingface/hub"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "", "HOME": "{0}"}, ".cache/huggingface/hub"),
    ],
)
@pytest.mark.parametrize("model_id", ["org/unknown-0.5B", "gpt2"])
def test_a_downloaded_model_is_read_from_the_cache(
    model_id: str, variables: Mapping[str, str], where: str, tmp_path: Path, hub: Hub
) -> None:
    cache_config(tmp_path / where, model_id)
    environ = {key: value.format(tmp_path) for key, value in variables.items()}
    model = read_model(model_id, environ={"HF_ENDPOINT": hub.endpoint, **environ})
    assert (model_id.rpartition("/")[2], PARAMS) == (model.name, model.params)
    assert [] == hub.asked


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_offline_asks_nobody(switch: str, value: str, environ: dict[str, str], hub: Hub) -> None:
    error = refuse("org/unknown-0.5B", {**environ, switch: value})
    forbidden = f"`org/unknown-0.5B` is not in the local cache, and `{switch}` forbids a download"
    assert (forbidden, ExitCode.FAILED, []) == (error.message, error.exit_code, hub.asked)


def test_a_known_model_needs_no_network(environ: dict[str, str], hub: Hub) -> None:
    model = read_model("meta-llama/Llama-3.1-8B", environ={**environ, "HF_HUB_OFFLINE": "1"})
    assert ("Llama-3.1-8B", 8_030_261_248, []) == (model.name, model.params, hub.asked)
    gated = "/meta-llama/Llama-3.2-3B/resolve/main/config.json"
    hub.answers[gated] = Answer(403, headers={"X-Error-Code": "GatedRepo"})
    assert 3_212_749_824 == read_model("meta-llama/Llama-3.2-3B", environ=environ).params


# The Hub


def test_an_id_that_the_hub_does_not_give_has_the_shape_that_is_known_and_a_note_says_so(
    environ: dict[str, str], hub: Hub
) -> None:
    offline = {**environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    for model_id in ("Qwen/Qwen2.5-7B-Instruct", "unsloth/Qwen2.5-7B-Instruct"):
        named = read_config(model_id, environ=offline)
        assert named is not None
        assert named.note is not None
        assert named.note.startswith("cannot reach http://127.0.0.1:9")
        assert named.note.endswith("zerowiz plans with the shape of `Qwen/Qwen2.5-7B`")
        assert ("Qwen2.5-7B-Instruct", 7_615_616_512) == (
            named.name,
            model_of(model_id, named).params,
        )
    assert [] == hub.asked


def test_a_short_name_asks_nobody_and_a_note_says_what_it_means(
    environ: dict[str, str], hub: Hub
) -> None:
    named = read_config("llama-3.1-8b", environ=environ)
    assert named is not None
    assert "`llama-3.1-8b` is taken to be `meta-llama/Llama-3.1-8B`" == named.note
    assert [] == hub.asked


def test_what_is_in_the_cache_comes_before_what_is_known(environ: dict[str, str], hub: Hub) -> None:
    cache_config(Path(environ["HF_HOME"]) / "hub", "gpt2")
    assert (PARAMS, []) == (read_model("gpt2", environ=environ).params, hub.asked)


def test_a_name_like_a_known_one_is_refused_with_names_that_are_taken(
    environ: dict[str, str],
) -> None:
    error = refuse("llama-3.1-9b", {**environ, "HF_HUB_OFFLINE": "1"})
    names = [word.removeprefix("$model ") for word in error.hints[0].split("`")[1::2]]
    assert "Llama-3.1-8B" in names
    for name in names:
        assert read_config(name, environ={**environ, "HF_HUB_OFFLINE": "1"}) is not None


def test_a_hub_that_trickles_is_given_up(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerowiz.probe.model.download._DEADLINE_S", 0.5)

    def trickle() -> None:
        with suppress(OSError):
            answer, _ = listening.accept()
            with answer:
                while not over.wait(0.05):
                    answer.sendall(b"H")

    over = Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=trickle)
        thread.start()
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        error = refuse("org/unknown", {**environ, "HF_ENDPOINT": endpoint})
        over.set()
        thread.join()
    assert "no answer within 0.5 s" in error.message


def test_an_id_is_fetched_from_the_hub(environ: dict[str, str], hub: Hub) -> None:
    hub.answers[PATH] = Answer(body=CONFIG)
    model = read_model("org/unknown-0.5B", environ={**environ, "HF_HUB_OFFLINE": "0"})
    assert ("unknown-0.5B", PARAMS) == (model.name, model.params)
    assert [(PATH, None)] == hub.asked


def test_a_half_downloaded_model_is_fetched(environ: dict[str, str], hub: Hub) -> None:
    hub.answers[PATH] = Answer(body=CONFIG)
    snapshot = cache_config(Path(environ["HF_HOME"]) / "hub", "org/unknown-0.5B")
    (snapshot / "config.json").unlink()
    assert PARAMS == read_model("org/unknown-0.5B", environ=environ).params


@pytest.mark.parametrize("source", ["HF_TOKEN", "HF_TOKEN_PATH", "token file"])
def test_the_token_travels_as_a_bearer(source: str, environ: dict[str, str], hub: Hub) -> None:
    hub.answers[PATH] = Answer(body=CONFIG)
    path = Path(environ["HF_HOME"]) / "token"
    path.parent.mkdir()
    path.write_text("hf_secret\n")
    told = {"HF_TOKEN": "hf_secret", "HF_TOKEN_PATH": str(path)}
    read_model(
        "org/unknown-0.5B",
        environ={**environ, **{k: told[k] for k in told if k == source}},
    )
    assert [(PATH, "Bearer hf_secret")] == hub.asked


def test_the_token_follows_a_redirect_on_the_same_host(environ: dict[str, str], hub: Hub) -> None:
    hub.answers[PATH] = Answer(307, headers={"Location": "/api/resolve-cache/config.json"})
    hub.answers["/api/resolve-cache/config.json"] = Answer(body=CONFIG)
    read_model("org/unknown-0.5B", environ={**environ, "HF_TOKEN": "hf_secret"})
    assert ["Bearer hf_secret"] * 2 == [token for _, token in hub.asked]


def test_no_other_host_sees_the_token(environ: dict[str, str], hub: Hub) -> None:
    with serving() as mirror:
        hub.answers[PATH] = Answer(302, headers={"Location": f"{mirror.endpoint}/blob"})
        mirror.answers["/blob"] = Answer(body=CONFIG)
        model = read_model("org/unknown-0.5B", environ={**environ, "HF_TOKEN": "hf_secret"})
    assert (PARAMS, [("/blob", None)]) == (model.params, mirror.asked)


@pytest.mark.parametrize(
    ("answer", "message", "hint", "exit_code"),
    [
        (
            Answer(404, "", {"X-Error-Code": ""}),
            "is not a folder here, and not a model on",
            "",
            ExitCode.USAGE,
        ),
        (
            Answer(401, "", {"X-Error-Code": "RepoNotFound"}),
            "is not a folder here, and not a model on",
            "",
            ExitCode.USAGE,
        ),
        (
            Answer(404, "", {"X-Error-Code": "EntryNotFound"}),
            "has no config.json",
            "",
            ExitCode.USAGE,
        ),
        (
            Answer(401, "", {"X-Error-Code": ""}),
            "is gated or private",
            "`HF_TOKEN`",
            ExitCode.FAILED,
        ),
        (
            Answer(403, "", {"X-Error-Code": "GatedRepo"}),
            "is gated or private",
            "`HF_TOKEN`",
            ExitCode.FAILED,
        ),
        (Answer(500, "", {"X-Error-Code": ""}), "answered 500", "", ExitCode.FAILED),
        (
            Answer(body="<html>Sign in to this network</html>"),
            "config.json of `org/unknown-0.5B` is not JSON: ",
            "",
            ExitCode.USAGE,
        ),
    ],
)
def test_a_refusal_of_the_hub_is_told_by_its_cause(
    answer: Answer,
    message: str,
    hint: str,
    exit_code: ExitCode,
    environ: dict[str, str],
    hub: Hub,
) -> None:
    hub.answers[PATH] = answer
    error = refuse("org/unknown-0.5B", environ)
    assert message in error.message
    assert "`org/unknown-0.5B`" in error.message
    assert hint in "\n".join(error.hints)
    assert exit_code == error.exit_code


def test_no_network_offers_a_folder_or_a_size(environ: dict[str, str]) -> None:
    error = refuse("org/unknown", {**environ, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert error.message.startswith(
        "cannot reach http://127.0.0.1:9 for the config.json of `org/un"
    )
    assert "use a folder with config.json, or a size such as `$model 7b`" == error.hints[-1]


@pytest.mark.parametrize("name", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_home_of_nobody_holds_no_cache(name: str, environ: dict[str, str]) -> None:
    without = {key: value for key, value in environ.items() if key not in {"HF_HOME", "HOME"}}
    nobodys = {**without, name: "~no-such-user/cache", "HF_HUB_OFFLINE": "1"}
    assert [] == [*cached_models(nobodys)]
    assert "not in the local cache" in refuse("org/unknown", nobodys).message


@pytest.mark.parametrize(
    "variables",
    [
        {"HF_ENDPOINT": "file:///etc"},
        {"HF_ENDPOINT": "hf"},
        {"HF_ENDPOINT": "http://["},
        {"HF_TOKEN": "hf_\nsecret"},
    ],
)
def test_an_environment_that_cannot_be_sent_is_told_without_the_token(
    variables: Mapping[str, str], environ: dict[str, str]
) -> None:
    error = refuse("org/unknown", {**environ, **variables})
    assert ExitCode.USAGE == error.exit_code
    assert "secret" not in error.message


def test_a_folder_is_read_without_loading_the_network() -> None:
    code = (
        "import sys; from zerowiz.probe.model.hf import model_of, read_config; "
        f"name = {str(MODELS / 'qwen2.5-0.5b')!r}; model_of(name, read_config(name, environ={{}})); "
        "print('urllib.request' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False\n" == ran.stdout
