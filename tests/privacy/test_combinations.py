"""Every combination of fields has an answer or a sentence that says why not; docs/method.md has the table. Seconds."""

from __future__ import annotations

import re

from tests.privacy.combinations import answers, combinations, correlated, documented

ARGUMENTS = "releases|group_size|neighbours|sampling|weights|noise_multiplier|min_separation|noise_filter"


def test_every_combination_answers_as_the_table_of_the_docs_says():
    found = {(*row, column): answers(run)[0] for row, column, run in [*combinations(), *correlated()]}
    assert documented() == found
    assert len(found) == 5 * 4 * 3 * 4 + (4 * 5 * 3 + 5 * 2) * 4


def test_every_refusal_is_one_sentence_that_names_an_argument():
    refusals = {refusal for _, _, run in [*combinations(), *correlated()] for refusal in answers(run)[1]}
    assert len(refusals) > 10
    for refusal in refusals:
        assert re.search(ARGUMENTS, refusal), refusal
        assert "\n" not in refusal
