"""Call a function that may crash or hang, such as the launch of a kernel with a planted defect."""

from __future__ import annotations

import faulthandler
import multiprocessing
import resource
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def run_isolated(function: Callable[..., object], *args: Any, timeout: float = 60.0) -> str:
    """Call a function in a forked child, which may crash or hang.

    Parameters
    ----------
    function : callable
        What to call; needs no pickling.
    *args
        Its arguments.
    timeout : float, default 60
        Seconds until the child is killed.

    Returns
    -------
    str
        ``"passed"``, or how it failed: ``"EmulationError: ..."``, ``"killed by SIGSEGV"``,
        ``"timed out after 60 s"``.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(sender, function, args), daemon=True)
    with warnings.catch_warnings():
        # CPython warns of forking with threads alive; the child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            child.kill()
            return f"timed out after {timeout:g} s"
        try:
            return str(receiver.recv())
        except EOFError:
            child.join()
            return _describe_exit(child.exitcode)
    finally:
        child.join()
        receiver.close()


def _report(sender: Connection, function: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Call the function and send the verdict; a crash leaves the pipe empty."""
    # Expected crashes should leave neither a traceback nor a core file.
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        function(*args)
    except BaseException as error:  # the verdict, whatever it is, belongs to the parent
        sender.send(f"{type(error).__name__}: {error}")
    else:
        sender.send("passed")


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exited with status {code}"
