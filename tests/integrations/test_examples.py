"""The examples of the hand-off and of a router run as their docstrings say."""

from __future__ import annotations

import pathlib
import runpy

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_a_router_finds_the_worker_and_turns_another_away(monkeypatch, secret_bytes, capsys):
    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    runpy.run_path(str(EXAMPLES / "router.py"))["main"]()
    cat, dog, text, refused = capsys.readouterr().out.splitlines()
    assert cat.endswith("('a', 96)")
    assert dog.endswith("('b', 96)")
    assert text.endswith("32)")
    assert "root of the other side is" in refused
    assert "another model, weights" in refused
