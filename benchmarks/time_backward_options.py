"""Time what each option costs in the backward pass, and the gradient of a bias.

    python benchmarks/time_backward_options.py --json benchmarks/results/time_backward_options.json
    python benchmarks/time_backward_options.py --only dbias dbias-keys --d 64 --n 4096

16,384 tokens in sequences of n, heads x d = 2,048, arrays (batch, heads, n, d) in memory. The cost
of an option is the time of a deterministic backward call, replayed from a CUDA graph, over that of
the plain call, full or causal as the call is; that of a window is per visible pair, beside the
causal call. All calls of a point take turns. Before, all gradients of each option are compared with
exact ones in a smaller problem of the same kernels.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy

from backward_options import BACKWARD_OPTIONS, BackwardOption, BackwardOptionCase, backward_case
from compile_ahead import Task, compile_ahead
from cupy_flash import reference
from cupy_flash.commands.table import aligned
from exact_gradients import Part, gradient_errors
from gpu_timing import machine
from option_cases import options_of
from peers_backward import BackwardArrays, Drawn, OursBackward, make_backward_arrays
from protocol import WRONG, Entry, Protocol, compare
from time_options import write

LENGTHS = (2048, 4096, 8192, 16_384)
DIMS = (64, 128, 256)
# Of the problems that are compared with exact gradients; windows must hide something.
CHECKED_N, CHECKED_N_OF_WINDOWS, CHECKED_BATCH, CHECKED_HEADS = 256, 1280, 2, 2
Point = dict[str, Any]


@dataclass(frozen=True)
class CheckedEntry(Entry):
    """A call whose errors are those of a smaller one, measured before."""

    def errors(self, call: Callable[[], Any]) -> dict[str, float]:
        found: dict[str, float] = self.exact
        return found


def with_plain(words: Sequence[str]) -> list[str]:
    """Return the options to measure in the order of the table, plain calls to compare with too."""
    wanted = {*words, *(BACKWARD_OPTIONS[word].beside for word in words)}
    return [word for word in BACKWARD_OPTIONS if word in wanted]


def arrays_of(
    asked: BackwardOption,
    case: BackwardOptionCase,
    drawn: Drawn,
    tables: dict[Any, Any],
    kernel: str | None,
) -> BackwardArrays:
    options = options_of(case, tables)
    return make_backward_arrays(
        case, drawn, options, asked.wrt, with_dlse=asked.dlse, kernel=kernel
    )


def tasks(kinds: Sequence[tuple[str, str, int]], ours: OursBackward) -> list[Task]:
    """Return what to compile for words of options, dtypes and d: each option's kernels once."""
    found = {}
    for word, dtype, d in kinds:
        asked = BACKWARD_OPTIONS[word]
        case = backward_case(asked.option, dtype, CHECKED_N, d)
        for wrt in asked.passes:
            key = asked.option.text, dtype, d, wrt
            found[key] = Task(case, wrt, ours.options.get("kernel"))
    return list(found.values())


def small_errors(asked: BackwardOption, dtype: str, d: int, ours: OursBackward) -> dict[str, float]:
    """Compute a small problem, and compare all its gradients with exact ones."""
    n = CHECKED_N_OF_WINDOWS if asked.option.window else CHECKED_N
    case = backward_case(asked.option, dtype, n, d, CHECKED_BATCH, CHECKED_HEADS)
    x = arrays_of(asked, case, Drawn(), {}, ours.options.get("kernel"))
    found = ours.once(ours.call(case, x))
    do, q, k, v = (cupy.asnumpy(a) for a in (x.do, x.q, x.k, x.v))
    options = {name: cupy.asnumpy(a) if hasattr(a, "dtype") else a for name, a in x.options.items()}
    dlse = None if x.dlse is None else cupy.asnumpy(x.dlse)
    exact = reference.attention_backward(
        do, q, k, v, dlse=dlse, wrt=x.wrt, causal=case.causal, **options
    )
    parts = [Part(i, (...,), gradient) for i, gradient in enumerate(exact)]
    return gradient_errors(found, parts, ours.to_host)


def measure(
    dtype: str, n: int, d: int, words: Sequence[str], ours: OursBackward, rounds: int, errors: Any
) -> Point:
    """Measure options at one point, all of them in turn.

    Returns
    -------
    dict
        "dtype", "batch", "heads", "n", "d", "sm_clock_mhz", and "options": for each word "text",
        "bar", and what `protocol.measure` says of a candidate, with "cost".
    """
    asked = {word: BACKWARD_OPTIONS[word] for word in words}
    cases = {word: backward_case(one.option, dtype, n, d) for word, one in asked.items()}
    cases = {word: case for word, case in cases.items() if not case.option.too_large(case)}
    drawn: Drawn = Drawn()
    tables: dict[Any, Any] = {}
    kernel = ours.options.get("kernel")
    entries = {
        word: CheckedEntry(
            ours, case, arrays_of(asked[word], case, drawn, tables, kernel), errors[word, dtype, d]
        )
        for word, case in cases.items()
    }
    found, clock = compare(entries, Protocol(rounds, 4 if n >= 8192 else 8))
    options = {
        word: {"text": asked[word].text, "bar": asked[word].bar, **found[word]} for word in cases
    }
    add_costs(options, {word: case.option.pairs(n) for word, case in cases.items()})
    some = next(iter(cases.values()))
    sizes = {"dtype": dtype, "batch": some.batch, "heads": some.heads, "n": n, "d": d}
    return {**sizes, "sm_clock_mhz": clock, "options": options}


def add_costs(options: Mapping[str, Any], pairs: Mapping[str, int]) -> None:
    """Add "cost", a call's time for a pair over the plain call's, and "wrong" for large errors."""
    for word, found in options.items():
        beside = BACKWARD_OPTIONS[word].beside
        plain = options[beside]
        share = pairs[word] / pairs[beside]
        found["cost"] = found["seconds"] / plain["seconds"] / share
        # Written so that NaN is wrong.
        if not found["max_error"] <= WRONG * plain["max_error"]:
            found["wrong"] = True


def table(points: Sequence[Point]) -> list[list[str]]:
    rows = [["dtype", "d", "n", "option", "ms", "TFLOP/s", "cost", "bar", "", "max error"]]
    for point in points:
        for found in point["options"].values():
            met = "" if found["cost"] <= found["bar"] else "above"
            rows.append(
                [
                    point["dtype"],
                    *(str(point[name]) for name in ("d", "n")),
                    found["text"],
                    f"{found['seconds'] * 1e3:.3f}",
                    f"{found['tflops']:.1f}",
                    f"{found['cost']:.3f}",
                    f"{found['bar']:.2f}",
                    met,
                    f"{found['max_error']:.1e}{' WRONG' if found.get('wrong') else ''}",
                ]
            )
    return rows


def summary(points: Sequence[Point]) -> list[str]:
    """Say the largest cost of each option, and whether it is within the bar."""
    lines = []
    for word, asked in BACKWARD_OPTIONS.items():
        costs = [
            (point["options"][word]["cost"], point) for point in points if word in point["options"]
        ]
        if not costs or asked.beside == word:
            continue
        most, where = max(costs, key=lambda cost: cost[0])
        place = f"{where['dtype']}, d = {where['d']}, n = {where['n']}"
        verdict = "within" if most <= asked.bar else "ABOVE"
        lines.append(f"{asked.text}: at most {most:.3f} ({place}), {verdict} {asked.bar:.2f}")
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--add", action="store_true", help="keep the other points of that file")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["float16", "bfloat16"])
    parser.add_argument("--n", nargs="+", type=int, choices=LENGTHS, default=[4096, 16_384])
    parser.add_argument("--d", nargs="+", type=int, choices=DIMS, default=[64, 128])
    parser.add_argument(
        "--only", nargs="+", choices=BACKWARD_OPTIONS, default=list(BACKWARD_OPTIONS)
    )
    parser.add_argument("--kernel", default="auto", help="of ours (default: auto)")
    parser.add_argument("--rounds", type=int, default=9, help="samples")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    ours, words = OursBackward(args.kernel), with_plain(args.only)
    kinds = list(itertools.product(words, args.dtype, args.d))
    compile_ahead(tasks(kinds, ours))
    with ThreadPoolExecutor() as pool:
        compared = pool.map(
            lambda kind: small_errors(BACKWARD_OPTIONS[kind[0]], kind[1], kind[2], ours), kinds
        )
        errors = dict(zip(kinds, compared, strict=True))
    print(f"compared {len(errors)} small problems with exact gradients", flush=True)
    points: list[Point] = []
    how = {"rounds": args.rounds, "kernel": args.kernel}
    results = {"machine": machine(), "peers": {}, **how, "points": points}
    save = functools.partial(write, results, args.json, args.add)
    for dtype, d, n in itertools.product(args.dtype, args.d, args.n):
        points.append(measure(dtype, n, d, words, ours, args.rounds, errors))
        ours.free()
        print(*aligned(table(points[-1:])), "", sep="\n", flush=True)
        save()
    print(*summary(points), sep="\n")


if __name__ == "__main__":
    main()
