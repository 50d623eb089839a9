"""What of the environment reaches the ranks of other nodes."""

import subprocess
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.launch.plan import EnvText, for_pdsh, is_secret, merge_env, render_env


def file(text: str) -> EnvText:
    return EnvText(name="mine", text=text)


def exported(value: str) -> str:
    """As DeepSpeed's add_export writes it (0.19.8), and pdsh passes it on."""
    import re

    value = value.strip()
    quoted = f'"{value}"' if re.search(r"[^\w@%+=:,./-]", value) else value
    return quoted.replace("%%", "%")


def shell_sees(lines: Mapping[str, str]) -> dict[str, str]:
    """What a node's shell makes of them."""
    exports = "".join(f"export {name}={exported(value)}; " for name, value in lines.items())
    shown = "".join(f'printf "%s\\0" "${name}"; ' for name in lines)
    done = subprocess.run(["sh", "-c", exports + shown], capture_output=True, check=True)
    values = done.stdout.decode().split("\0")[:-1]
    return dict(zip(lines, values, strict=True))


def lines_of(text: str) -> dict[str, str]:
    return dict(line.split("=", maxsplit=1) for line in text.splitlines())


def test_settings_of_training_libraries_travel_and_others_stay() -> None:
    environ = {"HF_HOME": "/x", "EDITOR": "vi", "CUDA_VISIBLE_DEVICES": "0", "DS_ENV_FILE": "f"}
    assert {"HF_HOME": "/x"} == merge_env(environ, {}).values


def test_a_line_of_the_person_wins_over_the_environment_and_over_a_default() -> None:
    sent = merge_env(
        {"NCCL_DEBUG": "INFO"},
        {"OMP_NUM_THREADS": "4"},
        [file("NCCL_DEBUG=WARN\nOMP_NUM_THREADS=8")],
    )
    assert {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"} == sent.exact


def test_the_file_of_the_working_folder_wins_over_that_of_the_home() -> None:
    assert {"A": "2"} == merge_env({}, {}, [file("A=1"), file("A=2")]).exact


def test_what_this_job_depends_on_wins_over_a_line() -> None:
    sent = merge_env({}, {"DS_ACCELERATOR": "cpu"}, [file("DS_ACCELERATOR=cuda")])
    assert {"DS_ACCELERATOR": "cpu"} == sent.exact
    assert ("`mine` line 1 is ignored: this job sets `DS_ACCELERATOR` itself",) == sent.notes


@pytest.mark.parametrize("line", ["no equals", "a b=1", "=1", "X=`id"])
def test_a_line_that_would_end_the_job_is_left_out_and_named(line: str) -> None:
    sent = merge_env({}, {}, [file(f"A=1\n{line}\nB=2")])
    assert {"A": "1", "B": "2"} == sent.exact
    assert [True] == ["line 2 is ignored" in note for note in sent.notes]


def test_blank_lines_and_comments_pass_without_a_word() -> None:
    sent = merge_env({}, {}, [file("\n  \n# A=1\nB=2\n")])
    assert ({"B": "2"}, ()) == (sent.exact, sent.notes)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("X=a b", "a b"),
        ('X="a b"', "a b"),
        ("X='$HOME'", "$HOME"),
        ("export X=1", "1"),
        ("X=$((1 + 2))", "3"),
        ('X={"a": "b"}', '{"a": "b"}'),
        ("X=ends in \\", "ends in \\"),
        (r"X=a \$ \" c", 'a $ " c'),
    ],
)
def test_a_line_means_to_the_node_what_it_would_mean_to_a_shell(line: str, value: str) -> None:
    text = render_env(merge_env({}, {}, [file(line)]))
    assert {"X": value} == shell_sees(lines_of(text))


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" ")))
def test_every_value_reaches_the_shell_of_a_node_as_it_is(value: str) -> None:
    value = value.strip()
    text = render_env(for_pdsh(merge_env({"HF_X": value}, {})))
    assert {"HF_X": value} == shell_sees(lines_of(text))


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "HUGGING_FACE_HUB_TOKEN"])
def test_a_secret_stays_unless_a_line_sends_it(name: str) -> None:
    stays = for_pdsh(merge_env({name: "s"}, {}))
    assert {} == stays.exact
    assert [True] == [note.startswith(f"`{name}` is not sent to the nodes") for note in stays.notes]
    for line in (f"{name}=s", f"{name}='s'"):
        sent = for_pdsh(merge_env({name: "t"}, {}, [file(line)]))
        assert ({name: "s"}, ()) == (sent.exact, sent.notes)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "NCCL_KEYS_X"])
def test_a_name_that_only_looks_like_a_secret_travels(name: str) -> None:
    assert not is_secret(name)


def test_a_value_with_a_line_break_stays_and_is_named() -> None:
    sent = for_pdsh(merge_env({"HF_X": "a\nb"}, {}))
    assert {} == sent.exact
    assert (
        "`HF_X` is not sent to the nodes: DeepSpeed cannot send a value with a line break",
    ) == sent.notes
