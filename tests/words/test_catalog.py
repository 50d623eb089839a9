"""Every catalog has every text of the code, translated, with the same names, literals and settings."""

import re
from collections.abc import Iterator
from string import Formatter

import pytest
from babel.messages.catalog import Message
from words.make_catalog import LANGUAGES, extract, make_catalog, path_of, read_catalog

each_language = pytest.mark.parametrize("language", LANGUAGES)
# Others are shown as they stand: `{...}`, JSON.
_NAME = re.compile(r"\{[a-z_]\w*(?:![rsa])?(?::[^{}]*(?:\{\w+\}[^{}]*)?)?\}")
# A width of its own and signs that look like ASCII would break columns and what is pasted.
_FULL_WIDTH = re.compile("[\u3000\uff01-\uff5e\uff61-\uff9f]")


def messages(language: str) -> Iterator[Message]:
    """What is to be translated."""
    return (each for each in read_catalog(language) if each.id)


@each_language
def test_the_catalog_has_the_texts_of_the_code(language: str) -> None:
    texts = {str(each.id) for each in messages(language)}
    assert (set(), set()) == (set(extract()) - texts, texts - set(extract())), "make words"


@each_language
def test_nothing_is_fuzzy_or_left_out(language: str) -> None:
    assert [] == [each.id for each in messages(language) if each.fuzzy or not each.string]


@each_language
def test_both_files_are_those_that_are_made(language: str) -> None:
    text, compiled = make_catalog(language)
    path = path_of(language)
    assert text == path.read_bytes(), "make words"
    assert compiled == path.with_suffix(".mo").read_bytes(), "make words"


@each_language
def test_a_translation_names_the_same_values(language: str) -> None:
    for each in messages(language):
        names = sorted(set(_NAME.findall(str(each.id))))
        assert names == sorted(set(_NAME.findall(str(each.string)))), each.id


@each_language
def test_a_translation_that_gets_values_can_be_formatted(language: str) -> None:
    for each in messages(language):
        if _NAME.search(str(each.id)) and "python-brace-format" in each.flags:
            for text in (str(each.id), str(each.string)):
                if "{...}" not in text:
                    list(Formatter().parse(text))


@each_language
def test_a_translation_keeps_what_is_typed_and_the_settings(language: str) -> None:
    for each in messages(language):
        literals = [*re.findall(r"`[^`]+`", str(each.id)), *re.findall(r"\$[a-z_]+", str(each.id))]
        assert [] == [literal for literal in literals if literal not in str(each.string)], each.id
        assert str(each.id).count("`") == str(each.string).count("`"), each.id


@each_language
def test_a_translation_ends_as_its_text_and_has_no_wide_ascii(language: str) -> None:
    for each in messages(language):
        # What divides a list has its room in it.
        ends = str(each.string)[-1:]
        assert str(each.id)[-1:].isspace() == (ends.isspace() or ends == "、"), each.id
        assert not _FULL_WIDTH.search(str(each.string)), each.id
