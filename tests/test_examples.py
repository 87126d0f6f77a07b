"""The examples run as their docstrings say, and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name):
    environment = {**os.environ, "GPUKEY_SECRET": "a secret for tests, long enough"}
    environment.pop("GPUKEY_SECRET_FILE", None)
    environment["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES.parent), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_encode_and_prefill():
    lines = run("encode_prefill.py")
    assert lines[0] == "the same image again: 6 of 6 blocks are shared"
    assert lines[1] == "another image: 2 blocks are shared, the text before it"
    assert lines[2].startswith("a changed envelope is refused: the MAC")


def test_the_op_in_a_forward():
    lines = run("op_in_forward.py")
    assert [line.split()[0] for line in lines] == ["16", "64", "100"]


@pytest.mark.parametrize(("arguments", "says"), [([], "GPUKEY_SECRET"), (["pigeon"], "transport is 'pigeon'; one of")])
def test_a_hand_off_that_cannot_begin_says_so(arguments, says):
    """Its worker would end before it connects, and the process that waits for it would wait for ever."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    for name in ("GPUKEY_SECRET", "GPUKEY_SECRET_FILE"):
        environment.pop(name, None)
    command = [sys.executable, EXAMPLES / "handoff_processes.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode != 0
    assert says in done.stderr.splitlines()[-1]
