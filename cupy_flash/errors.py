"""The exceptions and warnings that are ours; all else is a TypeError, ValueError or ImportError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

INSTALL_CUPY = (
    "cupy_flash needs CuPy for arrays on a GPU. Install one of\n"
    "    pip install 'cupy-flash[cuda12x]'      # CUDA 12 driver\n"
    "    pip install 'cupy-flash[cuda13x]'      # CUDA 13 driver\n"
    "NumPy arrays work without CuPy."
)


# Calls whose checks other calls share.
_SHARED = ("attention:", "attention_backward:")


@contextmanager
def named(call: str) -> Iterator[None]:
    """Let the errors of shared checks begin with the name of the call that the user made."""
    try:
        yield
    except (TypeError, ValueError) as error:
        first, *rest = error.args or ("",)
        for shared in _SHARED:
            if isinstance(first, str) and first.startswith(shared):
                error.args = (f"{call}:{first.removeprefix(shared)}", *rest)
                break
        raise


class PerformanceWarning(UserWarning):
    """A call is right, but slower than it could be: the message says why, and the way out."""


class CompileError(RuntimeError):
    """A kernel did not compile.

    Attributes
    ----------
    variant : str
        The kernel that was asked for: family, architecture, element types, head dims, features.
    options : tuple of str
        The options given to NVRTC (CuPy adds its own).
    nvrtc : str
        The version of the NVRTC that CuPy loaded.
    log : str
        What the compiler printed.
    """

    def __init__(self, variant: str, options: tuple[str, ...], nvrtc: str, log: str) -> None:
        self.variant = variant
        self.options = options
        self.nvrtc = nvrtc
        self.log = log
        super().__init__(
            f"cupy_flash could not compile {variant}\n"
            f"NVRTC {nvrtc}, options {' '.join(options)}\n{log.strip()}\n"
            "`python -m cupy_flash info` shows which NVRTC, headers and driver are in use."
        )

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, tuple[str, ...], str, str]]:
        """Pickle by the four parts, so that the error survives a process pool."""
        return type(self), (self.variant, self.options, self.nvrtc, self.log)
