"""Peers that take PyTorch tensors: its own attention, FlashAttention-3 and FlashAttention-4."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import cupy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cupy_flash import timing
from peers import Arrays, Candidate, Case

SIXTEEN_BITS = ("float16", "bfloat16")


def on_cupys_stream() -> AbstractContextManager[Any]:
    """Make CuPy's current stream PyTorch's."""
    # CuPy times on a stream of its own; PyTorch must be told of it. Of address 0, the default
    # stream, it would make a new stream.
    address = cupy.cuda.get_current_stream().ptr
    stream = torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()
    return torch.cuda.stream(stream)


class TorchCandidate(Candidate):
    """Calls on tensors, replayed from PyTorch's CUDA graphs: those know its allocator."""

    # Whose versions count besides torch's.
    distributions: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        found = {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
        return found | {name: importlib.metadata.version(name) for name in self.distributions}

    def family(self, case: Case, arrays: Arrays) -> str | None:
        # They round P to 16 bits as sm80 does, and its bound allows for that.
        return "sm80" if case.dtype in SIXTEEN_BITS else None

    def once(self, call: Callable[[], Any]) -> Any:
        with on_cupys_stream():
            result = call()
        torch.cuda.synchronize()
        return result

    def to_host(self, x: Any) -> Any:
        # NumPy has no bfloat16; every element is a double too.
        return x.detach().double().cpu().numpy()

    def eager(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        def run() -> None:
            with on_cupys_stream():
                for _ in range(calls):
                    call()

        return timing.between_events(run, stream, calls)

    def sample(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        graph = torch.cuda.CUDAGraph()
        # On a stream of PyTorch's; the default stream can't be captured.
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return self.replayed(graph, stream, calls)

    def replayed(self, graph: Any, stream: Any, calls: int) -> timing.Sample:
        """Sample a graph of so many calls."""

        def replay() -> None:
            with on_cupys_stream():
                graph.replay()

        return timing.between_events(replay, stream, calls)


class TorchAttention(TorchCandidate):
    """A function of q, k and v as tensors."""

    def tensor(self, x: Any) -> Any:
        """Return an array in the function's order of axes, without a copy."""
        return torch.from_dlpack(x)

    def by_head(self, x: Any) -> Any:
        """Return a result, or a gradient, indexed by (batch, head, row, column)."""
        return x

    def attend(self, case: Case, q: Any, k: Any, v: Any) -> Callable[[], Any]:
        """Return what calls the function."""
        raise NotImplementedError

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        return self.attend(case, *map(self.tensor, (arrays.q, arrays.k, arrays.v)))

    def once(self, call: Callable[[], Any]) -> Any:
        return self.by_head(super().once(call))


class Sdpa(TorchAttention):
    """One backend of PyTorch's scaled_dot_product_attention."""

    def __init__(self, name: str, backend: Any, dtypes: tuple[str, ...]) -> None:
        super().__init__(name)
        self.backend, self.dtypes = backend, dtypes

    def why_not(self, case: Case) -> str | None:
        if case.dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)}"
        return None

    def attend(self, case: Case, q: Any, k: Any, v: Any) -> Callable[[], Any]:
        grouped = case.heads != case.kv_heads

        def run() -> Any:
            with sdpa_kernel(self.backend):
                return scaled_dot_product_attention(
                    q, k, v, is_causal=case.causal, enable_gqa=grouped
                )

        return run


class Flash(TorchAttention):
    """FlashAttention's own interface, whose arrays are (batch, n, heads, d)."""

    def __init__(self, name: str, module: str, distributions: tuple[str, ...]) -> None:
        super().__init__(name)
        self.distributions = distributions
        self.function = importlib.import_module(module).flash_attn_func

    def why_not(self, case: Case) -> str | None:
        if case.dtype not in SIXTEEN_BITS:
            return f"takes {', '.join(SIXTEEN_BITS)}"
        if case.layout != "bnhd":
            return "takes (batch, n, heads, d) in memory: --layout bnhd"
        return None

    def tensor(self, x: Any) -> Any:
        return torch.from_dlpack(x.swapaxes(1, 2))

    def attend(self, case: Case, q: Any, k: Any, v: Any) -> Callable[[], Any]:
        def run() -> Any:
            result = self.function(q, k, v, causal=case.causal)
            # FlashAttention-4 returns the log-sum-exp too.
            return result[0] if isinstance(result, tuple) else result

        return run

    def by_head(self, x: Any) -> Any:
        return x.transpose(1, 2)


def cudnn() -> Candidate:
    return Sdpa("torch cuDNN", SDPBackend.CUDNN_ATTENTION, SIXTEEN_BITS)


def fa2() -> Candidate:
    return Sdpa("torch FA2", SDPBackend.FLASH_ATTENTION, SIXTEEN_BITS)


def efficient() -> Candidate:
    return Sdpa("torch efficient", SDPBackend.EFFICIENT_ATTENTION, (*SIXTEEN_BITS, "float32"))


def math() -> Candidate:
    return Sdpa("torch math", SDPBackend.MATH, (*SIXTEEN_BITS, "float32", "float64"))


def fa3() -> Candidate:
    """Return FlashAttention-3 as tokenspeed-fa3 builds it."""
    return Flash("FA3", "flash_attn_interface", ("tokenspeed-fa3",))


def fa4() -> Candidate:
    """Return FlashAttention-4, which compiles every kind of problem at its first call."""
    return Flash("FA4", "flash_attn.cute", ("flash-attn-4", "nvidia-cutlass-dsl"))
