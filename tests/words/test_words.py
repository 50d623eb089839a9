"""The mechanism: which language is chosen, and what a text is to people and to programs."""

import pickle
from collections.abc import Mapping

import pytest
from cli.harness import Run

from zerowiz.core.machine.spec import encode_machine, parse_machine
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.structs import replace
from zerowiz.probe.package_data import read_gpu_table, read_instances
from zerowiz.ui.text import on_device
from zerowiz.words import Message, english, fill, joined, speak, unknown_language, wanted_language

MEMORY = Message("メモリ不足", "too little memory")


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "ja_JP.UTF-8"}, "ja"),
        ({"LANG": "ja_JP.eucJP"}, "ja"),
        ({"LANG": "ja"}, "ja"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LC_MESSAGES": "ja_JP.UTF-8", "LC_ALL": "", "LANG": "C"}, "ja"),
        ({"LANGUAGE": "de:ja:en", "LANG": "en_US.UTF-8"}, "ja"),
        ({"ZEROWIZ_LANG": "en", "LANG": "ja_JP.UTF-8"}, "en"),
        ({"ZEROWIZ_LANG": "ja", "LC_ALL": "C"}, "ja"),
        ({"ZEROWIZ_LANG": "", "LANG": "ja_JP.UTF-8"}, "ja"),
    ],
)
def test_the_first_variable_that_is_set_chooses(environ: Mapping[str, str], language: str) -> None:
    assert language == wanted_language(environ)
    assert unknown_language(environ) is None


def test_an_unknown_language_is_one_error_in_english(process: Run) -> None:
    result = process("plan", "--model", "7b", ZEROWIZ_LANG="klingon", LANG="ja_JP.UTF-8")
    assert (2, "") == (result.code, result.stdout)
    assert [
        "error: `ZEROWIZ_LANG` is `klingon`, a language that zerowiz does not speak",
        "hint: set it to one of: en, ja",
    ] == [line for line in result.stderr.splitlines() if line]


def test_a_program_reads_english() -> None:
    assert {"why": ["too little memory", 8]} == english({"why": [MEMORY, 8]})
    assert ("too little memory",) == english((MEMORY,))


def test_a_text_of_a_table_keeps_its_english_when_its_values_come() -> None:
    row = Message("{path} は {why}", "{path}: {why}")
    filled = row.format(path="train.py", why=MEMORY)
    assert ("train.py はメモリ不足", "train.py: too little memory") == (filled, english(filled))


def test_a_value_with_texts_is_encoded_in_english() -> None:
    machine = parse_machine("4xA100-40GB", read_gpu_table(), read_instances())
    noted = replace(machine, notes=(MEMORY,))
    assert ("メモリ不足",) == noted.notes
    assert ("too little memory",) == encode_machine(noted)["notes"]


def test_a_copy_keeps_both() -> None:
    copied = pickle.loads(pickle.dumps(MEMORY))  # noqa: S301 - made one line above
    assert ("メモリ不足", "too little memory") == (copied, copied.english)


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("なければ {it}", "オフ", "なければオフ"),
        ("なければ {it}", "16", "なければ 16"),
        ("{it} のいずれか", "1、2", "1、2 のいずれか"),
        ("{it} のいずれか", "数値", "数値のいずれか"),
        ("確認  {it}", "数値", "確認  数値"),
        ("{{確認 {it:>4}}}", "数値", "{確認   数値}"),
    ],
)
def test_no_room_is_left_between_two_japanese_words(text: str, value: str, shown: str) -> None:
    assert shown == fill(text, {"it": value})


def test_no_room_is_left_in_a_list_of_japanese_words() -> None:
    either = Message(" または ", " or ")
    words = joined(either, (Message("オブジェクト", "an object"), "null"))
    assert ("オブジェクトまたは null", "an object or null") == (words, english(words))
    assert "`a` または `b`" == joined(either, ("`a`", "`b`"))


def test_no_room_is_left_behind_a_cpu_rank() -> None:
    gpus = parse_machine("2xA100-40GB", read_gpu_table(), read_instances())
    speak("ja")
    try:
        text = on_device(
            Message("各 GPU に収まる", "it fits each GPU"),
            replace(gpus, accelerator=Accelerator.CPU),
        )
    finally:
        speak("en")
    assert ("各 CPU ランクに収まる", "it fits each CPU rank") == (text, english(text))
