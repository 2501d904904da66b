"""Numbers and runs read plainly."""

import lastiterate as li
from lastiterate.formatting import describe, spell, spell_up


def test_runs_are_described_in_plain_words():
    sgd = li.SGD(learning_rate=[0.1, 0.2], momentum=0.9, nesterov=True, weight_decay=1e-4, averaging="uniform")
    assert describe(li.DPSGD(2, 0.1, [1.0, 2.0], optimizer=sgd)) == (
        "2 steps, sample rate 0.1, noise multiplier 1 to 2, Poisson sampling, learning rate 0.1 to 0.2, "
        "Nesterov momentum 0.9, weight decay 0.0001, uniform averaging"
    )
    released = li.DPSGD(1000, 0.1, 1.0, releases=10, group_size=4, neighbours="replace")
    assert describe(released) == (
        "1,000 steps, sample rate 0.1, noise multiplier 1, Poisson sampling, 10 iterates released, "
        "4 examples a person, all of them replaced by others"
    )
    assert [spell_up(value) for value in (0.1, 0.1000001, 1.0, 12345.1)] == ["0.1", "0.10001", "1", "12346"]
    assert [spell(value) for value in (1e-10, 1234.5678, 1.0, 2e9)] == ["1e-10", "1235", "1", "2e9"]
    assert [spell(value) for value in ([0.1, 0.9, 0.1], [2.0, 2.0])] == ["0.1 to 0.1, between 0.1 and 0.9", "2"]
