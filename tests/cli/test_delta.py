"""``lastiterate delta`` prints deltas for the epsilon that was asked for."""

import lastiterate as li
from lastiterate.formatting import spell_up


def test_the_title_names_the_epsilon_that_was_asked_for(cli):
    found = cli("delta --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --epsilon 1.27749").stdout.split()
    assert "epsilon 1.27749" in " ".join(found)
    assert spell_up(li.composition(li.DPSGD(1000, 0.01, 1.0)).delta(1.27749)) in found
