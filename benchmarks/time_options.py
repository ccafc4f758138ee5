"""Time what each option of attention costs, and other libraries with the same option.

    python benchmarks/time_options.py --growth --json benchmarks/results/time_options.json
    python benchmarks/time_options.py --quick
    python benchmarks/time_options.py --peers torch-efficient,torch-flex --d 64 --json options.json
    python benchmarks/time_options.py --only window-left window-both --n 16384

16,384 tokens in sequences of n, heads x d = 2,048, arrays (batch, heads, n, d) in memory. The cost
of an option is the time of a call over that of the same kernel's plain call, full or causal as the
call is; for a window, which is less work, also its TFLOP/s over the pairs in the window, beside
those of the plain causal call. All calls of a point take turns, from CUDA graphs. A peer whose
result is wrong counts in no ratio. --growth adds a window of 1,024 keys from n = 4,096 to 262,144:
its time should grow as n.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cupy

from cost_growth import exponent
from cupy_flash.commands import sampled
from cupy_flash.commands.table import aligned
from gpu_timing import machine
from option_cases import CAUSAL, OPTIONS, WINDOW, OptionCase, Tables, case_of, visible
from option_report import growth_table, reasons, table
from peers import Arrays, Candidate, Known, Ours, chosen, make_arrays, peer_words
from protocol import Entry, Protocol, best_peer, compare, judge

LENGTHS = (2048, 4096, 8192, 16_384)
QUICK_LENGTHS = (4096, 16_384)
DIMS = (64, 128)
PEERS: Known = {
    "torch-efficient": ("peers_options", "efficient"),
    "torch-flex": ("peers_options", "flex"),
}
FLEX = "FlexAttention"
GROWTH_LENGTHS = tuple(2**k for k in range(12, 19))
# Rows compared with exact ones at each of six places, for every option of a point.
ROWS = 8
# From so many rows on, at the last place only.
CHECKED_ELSEWHERE = 2**15
# What says which point one is.
KEY = ("dtype", "d", "n")
Point = dict[str, Any]


def with_plain(words: Sequence[str]) -> list[str]:
    """Return the options to measure in the order of `OPTIONS`, plain calls to compare with too."""
    wanted = {*words, *(OPTIONS[word].beside for word in words)}
    if any(OPTIONS[word].window for word in words):
        wanted.add(CAUSAL)
    return [word for word in OPTIONS if word in wanted]


def entries_of(
    cases: Mapping[str, OptionCase], tables: Tables, candidates: Sequence[Candidate]
) -> dict[tuple[str, str], Entry]:
    """Return what takes turns, by the words of options and the names of candidates.

    Exact rows and the first calls of ours, which compile, are made in threads: both take longer
    than anything else here.
    """
    with ThreadPoolExecutor() as pool:
        arrays = {word: tables.of(case) for word, case in cases.items()}
        compiled = [
            pool.submit(candidate.call(case, arrays[word]))
            for word, case in cases.items()
            for candidate in candidates
            if isinstance(candidate, Ours)
        ]
        rows = {word: pool.submit(_exact, case, arrays[word]) for word, case in cases.items()}
        for one in compiled:
            one.result()
        entries = {
            (word, candidate.name): Entry(candidate, case, arrays[word], rows[word].result())
            for word, case in cases.items()
            for candidate in candidates
        }
    cupy.cuda.Device().synchronize()
    return entries


def _exact(case: OptionCase, arrays: Arrays) -> list[sampled.Rows]:
    places = sampled.places(case.n, ROWS)
    if case.n > CHECKED_ELSEWHERE:
        places = places[-1:]
    q, k, v = arrays.q, arrays.k, arrays.v
    return sampled.exact_rows(q, k, v, case.causal, places, cupy.asnumpy, arrays.options)


def measure(
    dtype: str,
    n: int,
    d: int,
    words: Sequence[str],
    candidates: Sequence[Candidate],
    rounds: int,
) -> Point:
    """Measure options at one point, all of them and all candidates taking turns.

    Returns
    -------
    dict
        "dtype", "batch", "heads", "n", "d", "sm_clock_mhz", and "options": for each word "text",
        "visible", the share of visible pairs, and "candidates" as `protocol.measure` has them.
    """
    cases = {word: case_of(OPTIONS[word], dtype, n, d) for word in words}
    cases = {word: case for word, case in cases.items() if not OPTIONS[word].too_large(case)}
    plain = next(iter(cases.values()))
    entries = entries_of(cases, Tables(make_arrays(plain)), candidates)
    found, clock = compare(entries, Protocol(rounds, 4 if n >= 8192 else 8))
    options: dict[str, Any] = {}
    for word, case in cases.items():
        options[word] = {
            "text": case.option.text,
            "visible": visible(case, entries[word, candidates[0].name].arrays),
            "candidates": {c.name: found[word, c.name] for c in candidates},
        }
        judge(options[word]["candidates"])
    add_costs(options, candidates[0].name, [c.name for c in candidates[1:]])
    sizes = {"dtype": dtype, "batch": plain.batch, "heads": plain.heads, "n": n, "d": d}
    return {**sizes, "sm_clock_mhz": clock, "options": options}


def add_costs(options: Mapping[str, Any], ours: str, peers: Sequence[str]) -> None:
    """Add what follows from the times.

    Each candidate gets its "cost", its time over that of its plain call, and for windows
    "of_causal", its TFLOP/s over those of its plain causal call; an option gets the best right peer
    as "beside" and our speed over its as "ratio".
    """
    for word, found in options.items():
        option, candidates = OPTIONS[word], found["candidates"]
        for name, one in candidates.items():
            plain = options[option.beside]["candidates"][name]
            causal = options.get(CAUSAL, {"candidates": {}})["candidates"].get(name, {})
            if "seconds" in one and "seconds" in plain:
                one["cost"] = one["seconds"] / plain["seconds"]
            if option.window and "tflops" in one and "tflops" in causal:
                one["of_causal"] = one["tflops"] / causal["tflops"]
        best = best_peer(found, peers)
        if best is not None:
            found["beside"] = best
            found["ratio"] = candidates[ours]["tflops"] / candidates[best]["tflops"]


def measure_growth(dtype: str, lengths: Sequence[int], ours: Candidate, rounds: int) -> Any:
    """Measure a window beside a causal call, d = 128, 8 heads, batch 1, along n."""
    points = []
    for n in lengths:
        both = {
            word: OptionCase(
                dtype, 1, 8, 8, n, 128, OPTIONS[word].causal, "bhnd", option=OPTIONS[word]
            )
            for word in (WINDOW, CAUSAL)
        }
        entries = entries_of(both, Tables(make_arrays(both[CAUSAL])), [ours])
        found, clock = compare({word: one for (word, _), one in entries.items()}, Protocol(rounds))
        points.append({"n": n, "sm_clock_mhz": clock, **found})
        cupy.get_default_memory_pool().free_all_blocks()
    return {"dtype": dtype, "heads": 8, "d": 128, "points": points, "exponents": exponents(points)}


def exponents(points: Sequence[Point]) -> dict[str, float]:
    """Return with which power of n the time of each call grows."""
    sizes = [point["n"] for point in points]
    return {
        word: exponent(sizes, [point[word]["seconds"] for point in points])
        for word in (WINDOW, CAUSAL)
    }


def merged(results: dict[str, Any], path: Path, names: Sequence[str] = KEY) -> dict[str, Any]:
    """Return results with what a file has and they don't: other points, peers and the growth.

    Points are the same if they are in `names`.
    """

    def key(point: Point) -> tuple[Any, ...]:
        return tuple(point[name] for name in names)

    if not path.exists():
        return results
    old = json.loads(path.read_text())
    points = {key(point): point for point in (*old["points"], *results["points"])}
    both = {
        "peers": {**old["peers"], **results["peers"]},
        "points": [points[where] for where in sorted(points)],
    }
    return {**old, **results, **both}


def write(
    results: dict[str, Any], path: Path | None, add: bool, names: Sequence[str] = KEY
) -> None:
    """Write what there is so far: a run may be ended before its last point."""
    if path is not None:
        both = merged(results, path, names) if add else results
        path.write_text(json.dumps(both, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--add", action="store_true", help="keep the other points of that file")
    parser.add_argument("--dtype", nargs="+", default=["float16"], choices=["float16", "bfloat16"])
    parser.add_argument("--n", nargs="*", type=int, choices=LENGTHS, help="none: --growth alone")
    parser.add_argument("--d", nargs="+", type=int, choices=DIMS)
    parser.add_argument("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--kernel", default="sm80", help="of ours (default: sm80)")
    words = functools.partial(peer_words, known=PEERS, groups={})
    parser.add_argument("--peers", type=words, default=[], help=", ".join(PEERS))
    parser.add_argument(
        "--flex-n",
        nargs="*",
        type=int,
        default=list(QUICK_LENGTHS),
        help="where FlexAttention, which compiles each case for seconds (default: 4096 16384)",
    )
    parser.add_argument("--rounds", type=int, help="samples (default: 9)")
    parser.add_argument(
        "--quick", action="store_true", help="5 rounds, n = 4096 and 16384, d = 128"
    )
    parser.add_argument("--growth", action="store_true", help="also time along n with a window")
    args = parser.parse_args()
    if args.n is None:
        args.n = list(QUICK_LENGTHS if args.quick else LENGTHS)
    args.d = args.d or list(DIMS[1:] if args.quick else DIMS)
    args.rounds = args.rounds or (5 if args.quick else 9)
    return args


def main() -> None:
    args = arguments()
    ours = Ours(args.kernel)
    peers, used = chosen(args.peers, PEERS)
    points: list[Point] = []
    how = {"rounds": args.rounds, "kernel": args.kernel}
    results = {"machine": machine(), "peers": used, **how, "points": points}
    save = functools.partial(write, results, args.json, args.add)
    for dtype, d, n in itertools.product(args.dtype, args.d, args.n):
        able = [peer for peer in peers if peer.name != FLEX or n in args.flex_n]
        point = measure(dtype, n, d, with_plain(args.only), [ours, *able], args.rounds)
        points.append(point)
        cupy.get_default_memory_pool().free_all_blocks()
        rows = table([point], ours.name, [peer.name for peer in peers])
        print(*aligned(rows), "", sep="\n", flush=True)
        save()
    if args.growth:
        results["growth"] = measure_growth(args.dtype[0], GROWTH_LENGTHS, ours, args.rounds)
        print(*aligned(growth_table(results["growth"])), sep="\n")
        for word, power in results["growth"]["exponents"].items():
            print(f"{OPTIONS[word].text}: time grows as n^{power:.2f}")
        save()
    print("", *reasons(points), sep="\n")


if __name__ == "__main__":
    main()
