"""`--trace`, and what happens to a model that no formula knows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli.harness import Run, clean_environ, run_process

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1024,
}
# A family that only transformers knows.
BLOOM = {"model_type": "bloom", "n_layer": 2, "hidden_size": 256, "n_head": 4, "vocab_size": 1024}
RESNET = {"model_type": "resnet", "architectures": ["ResNetForImageClassification"]}
ON = ("--machine", "2xH200", "--seq-len", "256")


@pytest.fixture
def models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for each model, and a cache of one's own."""
    for name, config in (("llama", LLAMA), ("bloom", BLOOM)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder


def imports(models: Path, *words: str) -> set[str]:
    """The modules that a run of the tool had loaded as it ended."""
    script = (
        "import sys\n"
        "from zerowiz.cli.commands import main\n"
        f"sys.argv = {['zerowiz', *words]!r}\n"
        "try: main()\n"
        "except SystemExit as ended: assert ended.code == 0\n"
        "sys.stderr.write('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=models,
        env=clean_environ(XDG_CACHE_HOME=str(models / "cache")),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.rpartition("\n")[2].split())


def test_a_plan_loads_no_torch_unless_it_traces(models: Path) -> None:
    assert "torch" not in imports(models, "plan", "--model", "llama", *ON)


@pytest.mark.usefixtures("models")
def test_a_size_is_counted_by_formulas_whatever_is_asked(here: Run) -> None:
    counted, traced = (here("plan", "--model", "7b", *more, *ON) for more in ((), ("--trace",)))
    assert counted.stdout == traced.stdout.replace(" --trace", "")
    assert "note: `--trace` has no effect: `7b` is a size" in traced.stderr


@pytest.mark.usefixtures("models")
def test_an_unknown_family_is_guessed_where_nothing_can_trace_it(
    here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerowiz.app.resolve.trace.can_trace", lambda: False)
    result = here("plan", "--model", "bloom", "--json", *ON).good
    assert "guess" == json.loads(result.stdout)["model"]["source"]
    assert 1 == result.stderr.count("zerowiz does not know `bloom` yet, and estimates it")
    assert "pip install 'zerowiz[train]'" in result.stderr
    asked = here("plan", "--model", "llama", "--trace", *ON)
    assert (5, "`--trace` needs torch and transformers") == (asked.code, asked.problem)


def test_an_unknown_family_that_tells_no_sizes_is_refused_with_what_would_help(
    here: Run, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "bloom" / "config.json").write_text('{"model_type": "bloom"}')
    monkeypatch.setattr("zerowiz.app.resolve.trace.can_trace", lambda: False)
    result = here("plan", "--model", "bloom", *ON)
    missing = "config.json of `bloom`: `bloom` is not supported yet, and `hidden_size` is missing"
    assert (2, missing) == (result.code, result.problem)
    assert "pip install 'zerowiz[train]'" in result.hints


def test_no_trace_guesses_and_loads_no_torch(models: Path) -> None:
    words = ("plan", "--model", "bloom", "--no-trace", *ON)
    assert "torch" not in imports(models, *words)
    assert "estimates it as a Llama of the same sizes" in run_process(models, *words).stderr


def test_what_a_wrapper_holds_beside_its_language_model_is_said_to_be_left_out(
    here: Run, models: Path
) -> None:
    wrapper = {"model_type": "seeing_llama", "text_config": LLAMA, "vision_config": {}}
    (models / "bloom" / "config.json").write_text(json.dumps(wrapper))
    wrapped, alone = (
        here("plan", "--model", name, "--no-trace", "--json", *ON) for name in ("bloom", "llama")
    )
    assert "its language model only" in wrapped.stderr
    of_alone, of_wrapped = (json.loads(ran.stdout)["strategies"] for ran in (alone, wrapped))
    for one, other in zip(of_alone, of_wrapped, strict=True):
        # Its buffers are the leanest, for what is not counted needs room.
        for phase in ("model", "forward"):
            assert one["gpu"]["phases"][phase] == other["gpu"]["phases"][phase]
        if one["verdict"] != "does_not_fit":
            assert ("uncertain", "trace") == (other["verdict"], other["settled_by"])
        assert ["wrapped_model_alone"] == other["gpu"]["interval"]["uncounted"]


@pytest.mark.slow
def test_what_transformers_does_not_know_either_is_guessed_unless_a_trace_is_asked_for(
    models: Path,
) -> None:
    pytest.importorskip("transformers")
    (models / "llama" / "config.json").write_text(json.dumps({**LLAMA, "model_type": "abacus"}))
    guessed = run_process(models, "plan", "--model", "llama", "--json", *ON)
    assert "guess" == json.loads(guessed.stdout)["model"]["source"]
    assert "a Llama of the same sizes; transformers has no model for `abacus`" in guessed.stderr
    asked = run_process(models, "plan", "--model", "llama", "--trace", *ON)
    assert (2, "transformers has no model for `abacus`") == (asked.code, asked.problem)


@pytest.mark.slow
def test_a_traced_plan_says_so_and_the_next_one_takes_it_from_the_cache(models: Path) -> None:
    pytest.importorskip("transformers")
    words = ("plan", "--model", "bloom", "--json", *ON)
    environ = {"XDG_CACHE_HOME": str(models / "cache")}
    first = run_process(models, *words, env=environ).good
    assert "note: zerowiz does not know `bloom` yet: traced `BloomForCausalLM`" in first.stderr
    assert "trace" == json.loads(first.stdout)["model"]["source"]
    assert "torch" not in imports(models, *words)
    assert first.stdout == run_process(models, *words, env=environ).stdout


@pytest.mark.slow
def test_a_trace_agrees_with_the_formulas(models: Path) -> None:
    pytest.importorskip("transformers")
    words = ("plan", "--model", "llama", "--json", *ON)
    environ = {"XDG_CACHE_HOME": str(models / "cache")}
    counted, traced = (
        json.loads(run_process(models, *words, *more, env=environ).stdout)
        for more in ((), ("--trace",))
    )
    assert counted["model"] | {"source": "trace"} == traced["model"]
    for by_formula, by_trace in zip(counted["strategies"], traced["strategies"], strict=True):
        peaks = [strategy["gpu"]["peak_bytes"] for strategy in (by_formula, by_trace)]
        assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


@pytest.mark.slow
def test_every_machine_is_planned_with_the_trace(models: Path) -> None:
    pytest.importorskip("transformers")
    words = ("plan", "--model", "bloom", "--json", "--micro-batch", "8")
    listed = run_process(models, *words, "--machine", "all", "--gpus-per-node", "2")
    alone = run_process(models, *words, "--machine", "2xT4")
    peak_bytes = {
        one["name"]: one["gpu"]["peak_bytes"] for one in json.loads(alone.stdout)["strategies"]
    }
    # The oldest GPUs train in fp32.
    found = [
        each
        for each in json.loads(listed.stdout)["machines"]
        if each["nodes"] == 1 and each["precision"] != "fp32"
    ]
    assert {"2xT4-16GB", "2xH200-141GB"} <= {each["machine"] for each in found}
    for each in found:
        assert peak_bytes[each["strategy"]] == each["peak_bytes"]


@pytest.mark.slow
def test_a_traced_model_that_does_not_fit_gets_remedies(models: Path) -> None:
    pytest.importorskip("transformers")
    words = ("--model", "bloom", *ON, "--micro-batch", "512", "--memory-budget", "4GiB")
    result = run_process(models, "plan", *words)
    assert 4 == result.code, result.stderr
    assert "hint: `--micro-batch" in result.stderr
    smaller = result.stderr.partition("hint: `")[2].partition("`")[0]
    assert 0 == run_process(models, "plan", *words, *smaller.split()).code


@pytest.mark.slow
def test_of_a_traced_model_of_images_no_length_and_no_time_is_made_up(models: Path) -> None:
    pytest.importorskip("transformers")
    (models / "bloom" / "config.json").write_text(json.dumps(RESNET))
    words = ("--model", "bloom", "--machine", "2xH200", "--micro-batch", "8")
    shown = run_process(models, "plan", *words).good
    assert "micro-batch 8 x accumulation 1 x 2 GPUs = 16 images\n" in shown.stdout
    assert "tokens" not in shown.stderr
    why = "zerowiz predicts no step time, as zerowiz has no formulas for this model of images"
    assert why in run_process(models, "plan", *words, "--objective", "fastest").stdout
    full = run_process(models, "plan", *words, "--micro-batch", "4096", "--memory-budget", "2GiB")
    assert 4 == full.code, full.stderr
    assert "hint: " in full.stderr
    assert "--seq-len" not in full.stderr
