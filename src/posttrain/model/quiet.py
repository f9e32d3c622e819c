"""Keeping transformers from talking where posttrain says what is going on."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator


@contextlib.contextmanager
def quiet_transformers() -> Generator[None]:
    """No progress bars, advice or warnings of transformers inside; its settings are restored after."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
