"""Ctrl-C and SIGTERM while a command trains; what people then read is tested with the commands."""

import signal

import pytest

from lastiterate.cli.audit_options import resumable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ignored", [True, False])
def test_the_handler_of_a_signal_is_afterwards_what_it_was(tmp_path, number, ignored):
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.SIG_IGN if ignored else usual
    own = signal.signal(number, before)
    try:
        with resumable(tmp_path):
            assert (signal.getsignal(number) is before) == ignored
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, own)
