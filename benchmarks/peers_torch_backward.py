"""PyTorch's attention and its gradients by autograd, and those of FlashAttention-4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

import peers_torch
from cupy_flash import timing
from cupy_flash.arrays import to_dtype
from peers import Arrays, Candidate, Case
from peers_backward import WIDE, BackwardArrays, part_of
from peers_torch import Sdpa, TorchAttention, TorchCandidate

# Autograd keeps several matrices of scores: none larger than this, so that all fit.
MOST_BYTES = 2**33


class TorchBackward(TorchCandidate):
    """An attention function, whose gradients autograd computes on a graph that is kept."""

    def __init__(self, function: TorchAttention) -> None:
        super().__init__(function.name)
        self.function, self.distributions = function, function.distributions
        # Autograd goes back on the stream of the forward call. That must not be the default one,
        # which can't be captured.
        self.stream = torch.cuda.Stream()

    def why_not(self, case: Case) -> str | None:
        return self.function.why_not(case)

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        assert isinstance(arrays, BackwardArrays)
        function, part = self.function, part_of(case)
        q, k, v = (
            function.tensor(x).detach().requires_grad_() for x in (arrays.q, arrays.k, arrays.v)
        )
        do = function.tensor(arrays.do)
        forward = function.attend(case, q, k, v)
        if part == "forward":
            return forward

        def backward(o: Any) -> Any:
            return torch.autograd.grad(o, (q, k, v), do, retain_graph=part == "backward")

        if part == "both":
            return lambda: backward(forward())
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            kept = forward()
        torch.cuda.synchronize()
        return lambda: backward(kept)

    def once(self, call: Callable[[], Any]) -> Any:
        result = super().once(call)
        if isinstance(result, tuple):
            return tuple(map(self.function.by_head, result))
        return self.function.by_head(result)

    def sample(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        # Once on this stream before: libraries allocate for each.
        with torch.cuda.stream(self.stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(calls):
                call()
        return self.replayed(graph, stream, calls)

    def free(self) -> None:
        torch.cuda.empty_cache()


class Math(TorchBackward):
    """Matrices of scores in memory; called, as a graph would keep memory for each of them."""

    def why_not(self, case: Case) -> str | None:
        if case.dtype not in WIDE:
            return f"measured in {' and '.join(WIDE)}"
        scores = case.batch * case.heads * case.n**2 * to_dtype(case.dtype).itemsize
        if scores > MOST_BYTES:
            return f"a matrix of scores has {scores / 2**30:.0f} GiB"
        return self.function.why_not(case)

    def sample(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        return self.eager(call, stream, calls)


def cudnn() -> Candidate:
    return TorchBackward(_function(peers_torch.cudnn()))


def fa2() -> Candidate:
    return TorchBackward(_function(peers_torch.fa2()))


def efficient() -> Candidate:
    return TorchBackward(_function(peers_torch.efficient()))


def math() -> Candidate:
    return Math(Sdpa("torch math", SDPBackend.MATH, WIDE))


def fa4() -> Candidate:
    return TorchBackward(_function(peers_torch.fa4()))


def _function(candidate: Candidate) -> TorchAttention:
    assert isinstance(candidate, TorchAttention)
    return candidate
