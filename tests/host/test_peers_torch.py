"""PyTorch's peers work on CuPy's stream, also where a graph is replayed; with a pretended torch."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("cupy")

import peers
from cupy_flash import timing
from peers import Arrays, Case

BFLOAT16 = Case("bfloat16", 1, 8, 8, 64, 64, True, "bnhd")


class FakeTorch(ModuleType):
    """Logs streams, captures, replays and calls."""

    def __init__(self):
        super().__init__("torch")
        self.log = []
        self.__version__ = "2.11.0"
        self.cuda = SimpleNamespace(
            ExternalStream=lambda address: f"stream {address}",
            default_stream=lambda: "default stream",
            stream=self.on,
            synchronize=lambda: None,
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
            graph=lambda graph: self.on("capture"),
        )
        self.backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900))
        self.from_dlpack = lambda x: ("tensor", x)

    @contextlib.contextmanager
    def on(self, what):
        self.log.append(what)
        yield
        self.log.append("end")

    def attend(self, *tensors, **options):
        self.log.append(("call", options))
        return "result"


@pytest.fixture
def torch(monkeypatch):
    torch = FakeTorch()
    attention = SimpleNamespace(
        SDPBackend=SimpleNamespace(
            CUDNN_ATTENTION="cudnn", FLASH_ATTENTION="fa2", EFFICIENT_ATTENTION="eff", MATH="math"
        ),
        sdpa_kernel=torch.on,
    )
    functional = SimpleNamespace(scaled_dot_product_attention=torch.attend)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", ModuleType("torch.nn"))
    monkeypatch.setitem(sys.modules, "torch.nn.attention", attention)
    monkeypatch.setitem(sys.modules, "torch.nn.functional", functional)
    monkeypatch.delitem(sys.modules, "peers_torch", raising=False)
    module = importlib.import_module("peers_torch")
    torch.address = 0
    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=torch.address))
    monkeypatch.setattr(module, "cupy", SimpleNamespace(cuda=current))
    # A sample runs what lies between the events once.
    monkeypatch.setattr(timing, "between_events", lambda run, stream, calls: run)
    yield torch
    sys.modules.pop("peers_torch", None)


def arrays():
    swapped = SimpleNamespace(swapaxes=lambda *axes: ("swapped", axes))
    return Arrays(swapped, swapped, swapped, swapped)


def loaded(word):
    peer = peers.load(word)
    assert not isinstance(peer, str), peer
    return peer


def test_a_call_runs_on_cupys_stream(torch):
    peer = loaded("torch-fa2")
    call = peer.call(BFLOAT16, arrays())
    peer.once(call)
    options = {"is_causal": True, "enable_gqa": False}
    assert torch.log == ["default stream", "fa2", ("call", options), "end", "end"]
    torch.log.clear()
    torch.address = 7
    peer.eager(call, None, 2)()
    assert torch.log[0] == "stream 7"
    assert torch.log.count(("call", options)) == 2


def test_a_graph_is_captured_by_torch_and_replayed_on_cupys_stream(torch):
    peer = loaded("torch-cudnn")
    sample = peer.sample(peer.call(BFLOAT16, arrays()), None, 3)
    assert torch.log[0] == "capture"
    assert torch.log.count("cudnn") == 3
    torch.log.clear()
    torch.address = 7
    sample()
    assert torch.log == ["stream 7", "replay", "end"]


def test_flash_attentions_interface_gets_its_order_and_gives_up_its_lse(torch, monkeypatch):
    got = []

    def flash_attn_func(*tensors, causal):
        got.append((tensors, causal))
        return SimpleNamespace(transpose=lambda *axes: ("transposed", axes)), "lse"

    interface = SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", interface)
    peer = sys.modules["peers_torch"].fa3()
    assert peer.once(peer.call(BFLOAT16, arrays())) == ("transposed", (1, 2))
    assert got == [((("tensor", ("swapped", (1, 2))),) * 3, True)]


@pytest.mark.parametrize(
    ("word", "dtype", "able"),
    [
        ("torch-cudnn", "float16", True),
        ("torch-cudnn", "float32", False),
        ("torch-efficient", "float32", True),
        ("torch-efficient", "float64", False),
        ("torch-math", "float64", True),
    ],
)
def test_a_backend_says_which_dtypes_it_takes(word, dtype, able, torch):
    why = loaded(word).why_not(Case(dtype, 1, 8, 8, 64, 64, False))
    assert (why is None) is able


def test_flash_attention_asks_for_its_layout(torch, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=torch.attend)
    )
    peer = sys.modules["peers_torch"].fa3()
    assert peer.why_not(BFLOAT16) is None
    assert "--layout bnhd" in peer.why_not(Case("float16", 1, 8, 8, 64, 64, False))
    assert peer.family(BFLOAT16, arrays()) == "sm80"
