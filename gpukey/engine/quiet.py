"""transformers' progress bars only where somebody sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(*, reports: bool = True) -> Iterator[None]:
    """No progress bars unless stderr is a terminal, and no loading reports unless `reports`; as before afterwards."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    if not reports:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
