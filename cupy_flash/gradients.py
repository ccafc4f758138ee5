"""What gradients can be asked for, and the named tuple that they come in."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Container
from functools import cache
from typing import Any

NAMES = ("q", "k", "v", "bias", "sinks", "alibi_slopes", "scale")


def check_wrt(wrt: Any, given: Container[str]) -> None:
    """Refuse anything but a tuple of different names, out of `NAMES`, of what is given.

    Parameters
    ----------
    wrt : tuple of str
        What the call's gradients are with respect to.
    given : container of str
        The names that this call can differentiate: "scale", and its arrays.
    """
    allowed = ", ".join(map(repr, NAMES))
    if not isinstance(wrt, tuple):
        example = f"({wrt!r},)" if isinstance(wrt, str) else "(name,)"
        raise TypeError(
            f"attention_backward: wrt is {wrt!r}; it must be a tuple of names out of {allowed}. "
            f"For one name say wrt={example}"
        )
    if not wrt:
        raise ValueError(f"attention_backward: wrt is empty; name at least one of {allowed}")
    for name in wrt:
        if name not in NAMES:
            raise ValueError(f"attention_backward: wrt names {name!r}; allowed are {allowed}")
        if wrt.count(name) > 1:
            raise ValueError(
                f"attention_backward: wrt names {name!r} {wrt.count(name)} times; name it once"
            )
        if name not in given:
            raise ValueError(
                f"attention_backward: wrt names {name!r}, but {name} is None; pass {name}=, or "
                "leave it out of wrt"
            )


@cache
def gradients_type(wrt: tuple[str, ...]) -> Any:
    """Return the named tuple with a field for each name."""
    return namedtuple("Gradients", wrt)
