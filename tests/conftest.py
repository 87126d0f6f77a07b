"""Shared fixtures, and the one place that decides whether a marked test can run here. A test that cannot says why."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")

SECRET = b"a secret for tests, long enough"


def _gpu_missing() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "needs an NVIDIA GPU; on a machine with one: pytest -m gpu"


def _model_missing() -> str | None:
    directory = os.environ.get("GPUKEY_MODEL_DIR")
    if not directory:
        return "needs a Qwen2.5-0.5B checkpoint; set GPUKEY_MODEL_DIR to its directory"
    if not os.path.isfile(os.path.join(directory, "config.json")):
        raise pytest.UsageError(f"GPUKEY_MODEL_DIR is {directory!r}; it has no config.json")
    return None


def _interpreter_missing() -> str | None:
    return None if os.environ.get("TRITON_INTERPRET") == "1" else "needs TRITON_INTERPRET=1 in a process of its own"


def _engine_missing() -> str | None:
    wanted = os.environ.get("GPUKEY_ENGINE")
    return None if wanted else "needs another engine in its own environment; see .ci/engines"


_CONDITIONS = {
    "gpu": _gpu_missing,
    "model": _model_missing,
    "interpret": _interpreter_missing,
    "engine": _engine_missing,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {}
    for item in items:
        for name, missing in _CONDITIONS.items():
            if item.get_closest_marker(name):
                if name not in reasons:
                    reasons[name] = missing()
                if reasons[name]:
                    item.add_marker(pytest.mark.skip(reason=reasons[name]))


@pytest.fixture(scope="session")
def secret_bytes() -> bytes:
    """The secret's bytes, for `gpukey.reference`."""
    return SECRET


@pytest.fixture(scope="session")
def secret():
    """The same secret as a `gpukey.Secret`."""
    from gpukey.secret import Secret

    return Secret(SECRET)


@pytest.fixture
def fresh_python():
    """run(code) -> stdout of a new interpreter that has gpukey's tree on its path; a failure shows its stderr."""
    import subprocess

    def run(code: str, **env: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
