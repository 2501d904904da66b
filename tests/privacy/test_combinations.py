"""Every combination of fields has an answer or a sentence that says why not; docs/method.md has the table. Seconds."""

from tests.privacy.combinations import answers, combinations, correlated, documented


def test_every_combination_answers_as_the_table_of_the_docs_says():
    found = {(*row, column): answers(run)[0] for row, column, run in [*combinations(), *correlated()]}
    assert documented() == found
    assert len(found) == 4 * 4 * 3 * 4 + (3 * 5 * 3 + 5 * 2) * 4
