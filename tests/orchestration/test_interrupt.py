"""Ctrl-C asks first and insists second; handlers come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from posttrain.orchestration.interrupt import Interrupt


def test_the_first_signal_asks_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    names: list[str] = []
    with Interrupt(names.append) as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        assert interrupt.signal_name == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert names == ["SIGINT"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_terminated_process_gets_to_save() -> None:
    program = """
import sys, time
from posttrain.orchestration.interrupt import Interrupt
with Interrupt() as interrupt:
    print("ready", flush=True)
    while not interrupt.requested:
        time.sleep(0.01)
    print("saved after", interrupt.signal_name, flush=True)
sys.exit(130)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "saved after SIGTERM\n"
    assert process.wait() == 130
    process.stdout.close()


def test_outside_the_main_thread_it_is_harmless() -> None:
    seen: list[bool] = []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.append(interrupt.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
