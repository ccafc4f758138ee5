"""Time the tensor-core kernel beside PyTorch's FlashAttention-2, on the same memory.

    python benchmarks/time_peers.py --json benchmarks/results/time_peers.json

16,384 tokens, heads x d = 2,048, arrays of (batch, sequence, head, dim). Candidates run
interleaved: ours replayed from a CUDA graph, PyTorch's calls one after another, whose host cost is
small beside the time that a call takes. A causal call counts half the work.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import cupy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cupy_flash import attention, explain
from gpu_timing import machine, medians

TOKENS = 16_384
WIDTH = 2_048


def measure(dtype: str, n: int, d: int, causal: bool, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    shape = (TOKENS // n, n, WIDTH // d, d)
    tensors = [
        torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)).transpose(1, 2)
        for _ in range(4)
    ]
    q, k, v, out = map(cupy.from_dlpack, tensors)

    def ours() -> None:
        attention(q, k, v, causal=causal, out=out, kernel="sm80")

    def torch_flash() -> Any:
        # CuPy times on a stream of its own; PyTorch must be told of it. Of address 0, the default
        # stream, it would make a new stream.
        address = cupy.cuda.get_current_stream().ptr
        stream = torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.cuda.stream(stream):
            return scaled_dot_product_attention(*tensors[:3], is_causal=causal)

    ours()
    theirs = torch_flash()
    torch.cuda.synchronize()
    # Between two results that are both rounded to 16 bits.
    difference = (torch.from_dlpack(out) - theirs).abs().max().item()
    times = medians({"ours": ours, "torch FA2": torch_flash}, eager=("torch FA2",), rounds=rounds)
    flops = 4 * TOKENS * n * WIDTH / (2 if causal else 1)
    tile = explain(q, k, v, causal=causal, kernel="sm80").variant
    assert tile is not None
    return {
        "dtype": dtype,
        "n": n,
        "d": d,
        "causal": causal,
        "tile": f"{tile.tile.block_m} x {tile.tile.block_n}",
        "largest_difference": difference,
        "tflops": {name: flops / seconds / 1e12 for name, seconds in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--dtype", nargs="+", default=["float16"], choices=["float16", "bfloat16"])
    parser.add_argument("--n", nargs="+", type=int, default=[2048, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=9, help="samples; their median counts")
    args = parser.parse_args()
    points = []
    for dtype, d, causal, n in itertools.product(args.dtype, (64, 128, 256), (False, True), args.n):
        point = measure(dtype, n, d, causal, args.rounds)
        points.append(point)
        ours, theirs = point["tflops"].values()
        mask = "causal" if causal else "full"
        print(f"{dtype} d={d:3} {mask:6} n={n:5} {ours:6.1f} {theirs:6.1f} {ours / theirs:.3f}")
    if args.json:
        peers = {"torch": torch.__version__}
        results = {"machine": machine(), "peers": peers, "points": points}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
