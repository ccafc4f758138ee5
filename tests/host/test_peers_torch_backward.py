"""PyTorch's gradients are autograd's, on the streams that a graph needs; with a pretended torch."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

import peers
import peers_backward
import protocol
import time_backward
from cupy_flash import reference, timing
from peers_backward import PEERS, BackwardCase, Drawn, OursBackward, make_backward_arrays
from pretended_gpu import pretend
from test_peers_torch import FakeTorch

CASE = BackwardCase("float16", 2, 4, 4, 48, 8, True, "bnhd")


class Tensor:
    """A NumPy array, and of a result what its gradients need."""

    def __init__(self, array, made_by=None):
        self.array, self.made_by = array, made_by

    def detach(self):
        return Tensor(self.array)

    def requires_grad_(self):
        return self

    def transpose(self, *axes):
        return Tensor(self.array.swapaxes(*axes))

    def double(self):
        return Tensor(self.array.astype(np.float64))

    def cpu(self):
        return self

    def numpy(self):
        return self.array

    def __getitem__(self, index):
        return Tensor(self.array[index])


class Autograd(FakeTorch):
    """Computes attention and its gradients in float64, and notes which stream is current."""

    def __init__(self):
        super().__init__()
        self.streams = ["none"]
        self.cuda.Stream = lambda: "own stream"
        self.cuda.stream = self.current
        self.cuda.graph = self.capture
        self.cuda.empty_cache = lambda: self.log.append("emptied")
        self.from_dlpack = Tensor
        self.autograd = SimpleNamespace(grad=self.grad)

    @contextlib.contextmanager
    def current(self, stream):
        self.streams.append(stream)
        yield
        self.streams.pop()

    @contextlib.contextmanager
    def capture(self, graph, stream):
        with self.current(stream):
            self.log.append("capture")
            yield
            self.log.append("end of capture")

    def attend(self, q, k, v, *, is_causal, enable_gqa=False):
        self.log.append(("forward", self.streams[-1]))
        arrays = q.array, k.array, v.array
        out = reference.attention(*arrays, causal=is_causal).out
        return Tensor(out, (q, k, v, is_causal))

    def flash(self, q, k, v, *, causal):
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out = self.attend(*turned, is_causal=causal).transpose(1, 2)
        return Tensor(out.array, (q, k, v, causal)), "lse"

    def grad(self, o, inputs, do, retain_graph):
        self.log.append(("backward", self.streams[-1], retain_graph))
        q, k, v, causal = o.made_by
        assert all(a is b for a, b in zip(inputs, (q, k, v), strict=True))
        turn = 1 if o.array.shape[1] == CASE.n else 2
        arrays = [x.array.swapaxes(turn, 2) for x in (do, q, k, v)]
        found = reference.attention_backward(*arrays, causal=causal)
        return tuple(Tensor(x.swapaxes(turn, 2)) for x in found)


@pytest.fixture
def torch(monkeypatch):
    torch = Autograd()
    attention = SimpleNamespace(
        SDPBackend=SimpleNamespace(
            CUDNN_ATTENTION="cudnn", FLASH_ATTENTION="fa2", EFFICIENT_ATTENTION="eff", MATH="math"
        ),
        sdpa_kernel=lambda backend: contextlib.nullcontext(),
    )
    functional = SimpleNamespace(scaled_dot_product_attention=torch.attend)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", ModuleType("torch.nn"))
    monkeypatch.setitem(sys.modules, "torch.nn.attention", attention)
    monkeypatch.setitem(sys.modules, "torch.nn.functional", functional)
    flash = SimpleNamespace(flash_attn_func=torch.flash)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", flash)
    for name in ("peers_torch", "peers_torch_backward"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("peers_torch")
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "1")
    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))
    monkeypatch.setattr(module, "cupy", SimpleNamespace(cuda=current))
    pretend(monkeypatch, peers, peers_backward, protocol, time_backward)
    monkeypatch.setattr(protocol, "_clock", lambda stream: lambda: 1755.0)
    yield torch
    for name in ("peers_torch", "peers_torch_backward"):
        sys.modules.pop(name, None)


def loaded(word):
    peer = peers.load(word, PEERS)
    assert not isinstance(peer, str), peer
    return peer


def test_all_peers_are_right_in_every_part(torch):
    candidates = [OursBackward("auto"), *map(loaded, PEERS)]
    point = time_backward.measure(CASE, candidates, 2, Drawn())
    for part, found in point["parts"].items():
        able = {name for name, one in found["candidates"].items() if "seconds" in one}
        assert able == {"auto", "torch FA2", "torch cuDNN", "torch efficient", "FA4"}, part
        assert not any("wrong" in one for one in found["candidates"].values())
        assert not any("not_captured" in one for one in found["candidates"].values())
        assert found["ratio"] == pytest.approx(1)


def test_the_graph_that_is_kept_is_made_on_the_stream_that_is_captured(torch):
    peer = loaded("torch-fa2")
    call = peer.call(CASE, make_backward_arrays(CASE, Drawn()))
    assert torch.log == [("forward", "own stream")]
    torch.log.clear()
    peer.sample(call, None, 2)
    own = ("backward", "own stream", True)
    assert torch.log == [own, "capture", own, own, "end of capture"]


def test_a_graph_of_both_parts_is_not_kept(torch, monkeypatch):
    peer = loaded("torch-cudnn")
    case = BackwardCase("float16", 2, 4, 4, 48, 8, True, "bnhd", "both")
    call = peer.call(case, make_backward_arrays(case, Drawn()))
    assert torch.log == []
    monkeypatch.setattr(timing, "between_events", lambda run, stream, calls: run)
    peer.eager(call, None, 1)()
    assert torch.log == [("forward", "stream 7"), ("backward", "stream 7", False)]


def test_matrices_of_scores_are_measured_where_they_fit_and_not_captured(torch):
    peer = loaded("torch-math")
    assert "measured in float32 and float64" in peer.why_not(CASE)
    fits = BackwardCase("float64", 8, 32, 32, 2048, 64, False, "bnhd")
    assert peer.why_not(fits) is None
    too_large = BackwardCase("float64", 4, 32, 32, 4096, 64, False, "bnhd")
    assert peer.why_not(too_large) == "a matrix of scores has 16 GiB"
    case = BackwardCase("float32", 2, 4, 4, 48, 8, True, "bnhd")
    peer.sample(peer.call(case, make_backward_arrays(case, Drawn())), None, 1)
    assert "capture" not in torch.log
    peer.free()
    assert torch.log[-1] == "emptied"
