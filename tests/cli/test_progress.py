import io
import time

from lastiterate.cli import output as progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_a_bar_on_stderr(monkeypatch, capsys):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("lastiterate.common.progress.PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    done = []
    for item in progress.tracker("training")(range(3)):
        time.sleep(0.15)
        done.append(item)
    assert done == [0, 1, 2]
    assert "training" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_without_a_terminal_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("lastiterate.common.progress.PATIENCE", 0.0)
    for _ in progress.tracker("training")(range(2)):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
