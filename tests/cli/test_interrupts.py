"""Ctrl-C while a command is loading: one line and exit code 130, however often it is pressed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, signal, sys, threading, time
import posttrain.settings.stages
from posttrain.cli import main as cli

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

class Holder:
    def __del__(self):
        press()

def loading(*arguments):
    {loading}

posttrain.settings.stages.is_stages_file = loading
{before}
cli.main(["train", "x.toml"])
"""

PLACES = {
    "once": ("press()", ""),
    "again while cleaning up": ("try: press()\n    finally: press()", ""),
    "again and again while cleaning up": (
        "try: press()\n    finally:\n        try: press()\n        finally: press()",
        "",
    ),
    "again while an object is deleted": ("holder = Holder()\n    press()", ""),
    "again when the interpreter ends": ("press()", "atexit.register(press)"),
    "while a thread is still reading": ("threading.Thread(target=time.sleep, args=(600,)).start()\n    press()", ""),
}


@pytest.mark.parametrize("place", PLACES)
def test_one_line_and_exit_code_130(place: str) -> None:
    loading, before = PLACES[place]
    program = PROGRAM.format(loading=loading, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_a_command_that_is_not_interrupted_ends_as_ever() -> None:
    program = PROGRAM.format(loading="raise posttrain.errors.InputError('a', 1, 'is wrong', 'Mend it.')", before="")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (2, "error: a = 1: is wrong. Mend it.\n")
