"""The environment variables of cupy_flash: one table, and the logging that it configures."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass

LOG = "CUPY_FLASH_LOG"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_HANDLER = "cupy_flash on stderr"


@dataclass(frozen=True)
class Variable:
    """An environment variable that changes what happens.

    Attributes
    ----------
    name : str
    default : str
        What holds while it isn't set, in words.
    meaning : str
        What it does.
    """

    name: str
    default: str
    meaning: str


OURS = (Variable(LOG, "no output", f"log to stderr from this level on: {', '.join(LEVELS)}"),)


def configure_logging() -> None:
    """Attach the handlers of the "cupy_flash" logger; importing the package does it once.

    Without `CUPY_FLASH_LOG` the logger stays silent until the application configures logging. With
    it, messages of that level and above go to stderr: INFO tells of every compilation.

    Warns
    -----
    UserWarning
        If the variable holds no level; it is then ignored.
    """
    logger = logging.getLogger("cupy_flash")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    value = os.environ.get(LOG, "")
    if not value:
        return
    level = value.strip().upper()
    if level not in LEVELS:
        warnings.warn(
            f"{LOG} is {value!r} and is ignored; allowed are {', '.join(LEVELS)}", stacklevel=2
        )
        return
    logger.setLevel(level)
    if not any(handler.get_name() == _HANDLER for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.set_name(_HANDLER)
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
