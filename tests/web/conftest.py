import pytest

from lastiterate.cli.serve import curves_of, integers_of, number_of, run_of
from lastiterate.web.form_fields import Reader
from tests.web.running import Running


@pytest.fixture(scope="session")
def reader():
    return Reader(run_of, curves_of, number_of, integers_of)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder of stores: one audit that is finished, one folder deeper. Its report is beside the folder."""
    import lastiterate as li
    from lastiterate.attacks import Adversarial
    from lastiterate.plot.page import write_page

    folder = tmp_path_factory.mktemp("runs")
    run = li.DPSGD(steps=20, sample_rate=0.2, noise_multiplier=1.0)
    found = li.audit(run, None, Adversarial("exact"), models=60, store=folder / "deep/exact.sqlite", progress=False)
    write_page(found, folder / "report.html")
    return folder


@pytest.fixture(scope="session")
def server(runs):
    running = Running("watch", str(runs))
    yield running
    running.stop()
