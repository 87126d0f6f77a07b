"""A set of replaced attributes: put in once, all or none, and taken out in reverse."""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

logger = logging.getLogger("gpukey")
Hook = tuple[Any, str, Callable[[Any], Any]]
"""(module or class, name, function from what stands there, as written, to what shall stand there)."""


class Patches:
    """install(hooks) and uninstall(), from any thread, any number of times. One log line for each that changes something."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._lock = threading.RLock()
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @property
    def installed(self) -> bool:
        return bool(self._replaced)

    def install(self, hooks: Callable[[], Iterable[Hook]], note: str) -> bool:
        """False when already installed. `hooks` runs under the lock; an error leaves the engine as it was."""
        with self._lock:
            if self._replaced:
                return False
            try:
                for owner, name, make in hooks():
                    found = inspect.getattr_static(owner, name)
                    replacement = make(found)
                    setattr(owner, name, replacement)
                    self._replaced.append((owner, name, found, replacement))
            except BaseException:
                self._restore()
                raise
            logger.info("gpukey: installed into %s: %s", self.title, note)
            return True

    def uninstall(self) -> bool:
        """False when nothing was installed. RuntimeError when another patch stands on top: take that one out first."""
        with self._lock:
            for owner, name, _, replacement in self._replaced:
                if inspect.getattr_static(owner, name) is not replacement:
                    raise RuntimeError(f"{owner.__name__}.{name} was replaced again after gpukey; undo that first")
            if not self._replaced:
                return False
            self._restore()
            logger.info("gpukey: removed from %s", self.title)
            return True

    def _restore(self) -> None:
        for owner, name, found, _ in reversed(self._replaced):
            setattr(owner, name, found)
        self._replaced.clear()


def check_version(engine: str, found: str, first: tuple[int, int], last: tuple[int, int]) -> tuple[int, int]:
    """(major, minor) of `found`; RuntimeError unless it lies in first..last."""
    match = re.match(r"(\d+)\.(\d+)", found)
    version = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not first <= version <= last:
        raise RuntimeError(
            f"gpukey's hooks for {engine} were checked with {first[0]}.{first[1]} to {last[0]}.{last[1]}; {found} is installed"
        )
    return version
