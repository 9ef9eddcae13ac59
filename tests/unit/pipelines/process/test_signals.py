"""Claim: a stop signal unwinds the stack once, and a second one does not interrupt the stop."""

from __future__ import annotations

import signal

import pytest

from pipelines.process.signals import handled_signals, interrupt_once


def test_only_the_first_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopped: list[str] = []

    def run() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            stopped.append("in order")

    with pytest.raises(KeyboardInterrupt) as caught, handled_signals(interrupt_once):
        run()
    assert (caught.value.args, stopped) == ((signal.SIGTERM,), ["in order"])
    assert signal.getsignal(signal.SIGTERM) is before
