"""PyTorch's peers compute what `attention` means by each option; torch is pretended by NumPy."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

import option_cases
import peers
from cupy_flash import reference
from option_cases import OPTIONS, Tables, case_of
from pretended_gpu import pretend

BATCH, HEADS, N, D = 2, 4, 48, 8


class Tensor(np.ndarray):
    def expand(self, *shape):
        return np.broadcast_to(self, shape, subok=True)


def softmax_attention(q, k, v, scores_of):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    S = scores_of(q @ k.swapaxes(-1, -2) / np.sqrt(D))
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    return P @ v / P.sum(axis=-1, keepdims=True)


def indices():
    return np.ix_(*map(np.arange, (BATCH, HEADS, N, N)))


def flex_attention(q, k, v, *, score_mod=None, block_mask=None):
    def scores_of(S):
        S = S if score_mod is None else score_mod(S, *indices())
        return S if block_mask is None else np.where(block_mask, S, -np.inf)

    return softmax_attention(q, k, v, scores_of)


def create_block_mask(mask_mod, batch, heads, m, n, device):
    assert (heads, m, n, device) == (None, N, N, "cuda")
    entry, head, row, key = indices()
    seen = mask_mod(entry[: batch or 1], head[:, :1], row, key)
    # As FlexAttention would: one mask for every index of an axis that isn't named.
    assert np.ndim(seen) < 4 or np.shape(seen)[0] == (batch or 1)
    return seen


def scaled_dot_product_attention(q, k, v, *, attn_mask=None, is_causal=False):
    assert attn_mask is None or not is_causal

    def scores_of(S):
        if is_causal:
            return np.where(np.tri(N, dtype=bool), S, -np.inf)
        if attn_mask is None:
            return S
        if attn_mask.dtype == bool:
            return np.where(attn_mask, S, -np.inf)
        if attn_mask.dtype != q.dtype or attn_mask.shape != S.shape:
            raise RuntimeError("invalid bias")
        return S + np.asarray(attn_mask, np.float64)

    return softmax_attention(q, k, v, scores_of)


@pytest.fixture
def torch(monkeypatch):
    torch = ModuleType("torch")
    torch.from_dlpack = lambda x: x.view(Tensor)
    torch.compile = lambda function, dynamic: function
    torch.tanh, torch.abs, torch.bool = np.tanh, np.abs, np.bool_
    torch._dynamo = SimpleNamespace(config=SimpleNamespace(recompile_limit=8))
    backends = SimpleNamespace(EFFICIENT_ATTENTION="efficient")
    monkeypatch.setitem(sys.modules, "torch", torch)
    parts = {
        "torch.nn": {},
        "torch.nn.attention": {"SDPBackend": backends, "sdpa_kernel": torch_context},
        "torch.nn.attention.flex_attention": {
            "flex_attention": flex_attention,
            "create_block_mask": create_block_mask,
        },
        "torch.nn.functional": {"scaled_dot_product_attention": scaled_dot_product_attention},
    }
    for name, contents in parts.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("peers_torch", "peers_options"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pretend(monkeypatch, peers, option_cases)
    monkeypatch.setattr(option_cases, "TOKENS", BATCH * N)
    monkeypatch.setattr(option_cases, "WIDTH", HEADS * D)
    monkeypatch.setattr(option_cases, "BLOCK", 8)
    yield torch
    for name in ("peers_torch", "peers_options"):
        sys.modules.pop(name, None)


class torch_context:
    def __init__(self, backend):
        assert backend == "efficient"

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass


UNABLE = {
    "efficient": {
        *("window-left", "window-both", "softcap", "softcap-causal", "alibi", "sinks", "all"),
    },
    "flex": {"sinks", "all"},
}


@pytest.mark.parametrize("word", OPTIONS)
@pytest.mark.parametrize("peer", UNABLE)
def test_a_peer_computes_an_option_or_says_why_not(peer, word, torch, monkeypatch):
    if word.startswith("window"):
        window = {"window-left": (9, 0), "window-both": (5, 7)}[word]
        monkeypatch.setitem(OPTIONS, word, option_cases.Option("", values={"window": window}))
    candidate = getattr(importlib.import_module("peers_options"), peer)()
    case = case_of(OPTIONS[word], "float16", N, D)
    why = candidate.why_not(case)
    if word in UNABLE[peer]:
        assert why.startswith("takes no ")
        return
    assert why is None
    arrays = Tables(peers.make_arrays(case)).of(case)
    call = candidate.call(case, arrays)
    if (peer, word) == ("efficient", "bias-float32"):
        with pytest.raises(RuntimeError, match="invalid bias"):
            call()
        return
    x = arrays
    exact = reference.attention(x.q, x.k, x.v, causal=case.causal, **arrays.options)
    np.testing.assert_allclose(call(), exact.out, rtol=0, atol=1e-6)


def test_a_bias_is_expanded_without_a_copy(torch, monkeypatch):
    module = importlib.import_module("peers_options")
    got = []
    monkeypatch.setattr(
        module, "scaled_dot_product_attention", lambda *x, **options: got.append(options)
    )
    for word in ("bias", "bias-keys", "mask"):
        case = case_of(OPTIONS[word], "float16", N, D)
        arrays = Tables(peers.make_arrays(case)).of(case)
        module.efficient().call(case, arrays)()
    masks = [options["attn_mask"] for options in got]
    assert [mask.shape for mask in masks] == [(BATCH, HEADS, N, N)] * 2 + [(N, N)]
    assert [mask.strides for mask in masks] == [(0, 0, 2 * N, 2), (0, 0, 0, 2), (N, 1)]


def test_flex_attention_may_compile_every_case(torch):
    importlib.import_module("peers_options").flex()
    assert torch._dynamo.config.recompile_limit >= 8 * len(OPTIONS)
