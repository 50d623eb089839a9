"""Answers are a stack: going back takes the latest, and changing one keeps the others."""

from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.decision.questions import Answers

KEYS = st.sampled_from(["script", "model", "goal", "micro_batch", "sequence_tokens"])
GIVEN = st.lists(st.tuples(KEYS, st.text(min_size=1)), unique_by=lambda each: each[0])
SOME_GIVEN = GIVEN.filter(bool)


def of(given_answers: list[tuple[str, str]]) -> Answers:
    answers = Answers()
    for key, answer in given_answers:
        answers = answers.with_answer(key, answer)
    return answers


@given(GIVEN, KEYS, st.text(min_size=1))
def test_going_back_undoes_the_last_answer(
    before: list[tuple[str, str]], key: str, answer: str
) -> None:
    fresh = [each for each in before if each[0] != key]
    undone = of(fresh).with_answer(key, answer).back()
    assert tuple(fresh) == undone.given
    assert answer == undone.before[key]


@given(SOME_GIVEN, st.data())
def test_changing_one_answer_keeps_all_others_and_their_order(
    before: list[tuple[str, str]], data: st.DataObject
) -> None:
    key, _ = data.draw(st.sampled_from(before))
    changed = of(before).with_answer(key, "new")
    assert [k for k, _ in before] == [k for k, _ in changed.given]
    others = {k: v for k, v in before if k != key}
    assert {**others, key: "new"} == changed.by_key


@given(GIVEN, st.sets(KEYS))
def test_what_does_not_matter_any_more_is_remembered(
    before: list[tuple[str, str]], keys: set[str]
) -> None:
    kept = of(before).only(keys)
    assert {k: v for k, v in before if k in keys} == kept.by_key
    assert dict(before) == dict(kept.before)


def test_a_global_batch_is_learned_from_whatever_steps_a_remedy_made_of_the_one_before() -> None:
    remedied = Answers().taking({"micro_batch": 2, "accumulation_steps": 2})
    assert {"micro_batch": 2} == remedied.with_answer("global_batch", "64").settings
