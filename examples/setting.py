"""What the examples share: where their arrays live, their command line, and their verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cupy_flash.device import gpu_is_available


@dataclass(frozen=True)
class Setting:
    """How an example runs.

    Attributes
    ----------
    xp : module
        cupy, or numpy for the NumPy path.
    small : bool
        Sizes that a laptop computes in seconds.
    picture : Path or None
        Where to draw, if anywhere.
    """

    xp: Any
    small: bool
    picture: Path | None

    def array(self, x: np.ndarray[Any, Any]) -> Any:
        """Return a NumPy array where the example computes."""
        return self.xp.asarray(x)

    def numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """Return an array of the example as a NumPy array."""
        return x.get() if hasattr(x, "get") else np.asarray(x)


def setting(description: str | None, argv: Sequence[str] | None, *, draws: bool = False) -> Setting:
    """Read an example's command line; without a GPU it takes the NumPy path and small sizes.

    Only what draws takes ``--picture``.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="the NumPy path; default without a GPU")
    parser.add_argument("--small", action="store_true", help="small sizes; default with --cpu")
    parser.set_defaults(picture=None)
    if draws:
        parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the result")
    given = parser.parse_args(argv)
    cpu = given.cpu or not gpu_is_available()
    if cpu:
        return Setting(np, True, given.picture)
    import cupy

    return Setting(cupy, given.small, given.picture)


def verdict(**checks: tuple[float, float]) -> int:
    """Print each check, what was found and what is allowed, and return the exit status.

    A NaN fails.
    """
    failed = 0
    for what, (found, allowed) in checks.items():
        right = found <= allowed
        failed += not right
        words = what.replace("_", " ")
        print(f"{words}: {found:.2g}, at most {allowed:.2g} allowed: {'ok' if right else 'WRONG'}")
    return int(failed > 0)
