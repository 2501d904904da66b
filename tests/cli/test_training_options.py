"""Ctrl-C while a command trains; what people then read is tested with the commands."""

from __future__ import annotations

import signal

import pytest

from lastiterate.cli.audit_actions import ending_at_once
from lastiterate.cli.training_options import resumable


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_the_handler_of_ctrl_c_is_afterwards_what_it_was(tmp_path, before):
    own = signal.signal(signal.SIGINT, before)
    try:
        with resumable(tmp_path):
            assert (signal.getsignal(signal.SIGINT) is before) == (before is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, own)


def test_a_handler_that_python_did_not_install_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # as where a program embeds Python
    handlers = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append(handler))
    for within in (resumable(tmp_path), ending_at_once()):
        with within:
            pass
    assert handlers == []
