"""What random tests drew: counted, printed, and demanded."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from layouts import LAYOUTS
from option_arrays import along
from problems import VALUES, Case, result_dtype

# Of which every two values must meet.
FACTORS = {
    "mask": ("none", "keys", "pairs"),
    "bias": ("none", "keys", "pairs"),
    "window": ("none", "left", "right", "both"),
    "causal": ("no", "yes"),
    "softcap": ("no", "yes"),
    "alibi": ("no", "yes"),
    "sinks": ("no", "yes"),
    "lengths": ("None", "q", "k", "both"),
    "offset": ("default", "given"),
    "heads": ("none", "plain", "grouped"),
    "p": ("d", "not d"),
    "dtype": ("float16", "bfloat16", "float32", "float64"),
}


def factors(case: Case) -> dict[str, str]:
    """Return the value of each factor."""
    sides = {(False, False): "none", (True, False): "left", (False, True): "right"}
    bounded = tuple(bound is not None for bound in case.window or (None, None))
    grouped = (case.heads or 0) > (case.kv_heads or 0) > 0
    yes_or_no = {
        "causal": case.causal,
        "softcap": case.softcap is not None,
        "alibi": case.alibi is not None,
        "sinks": case.sinks is not None,
    }
    return {
        "mask": along(case.mask),
        "bias": along(case.bias),
        "window": sides.get(bounded, "both"),
        **{name: "yes" if there else "no" for name, there in yes_or_no.items()},
        "lengths": str(case.lengths),
        "offset": "default" if case.offset is None else "given",
        "heads": "grouped" if grouped else "plain" if case.heads else "none",
        "p": "d" if case.p == case.d else "not d",
        "dtype": result_dtype(case),
    }


class Coverage:
    """Counts what was drawn; a class that stays empty fails the test."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.pairs: Counter[tuple[tuple[str, str], tuple[str, str]]] = Counter()
        self.total = 0

    def add(self, case: Case) -> None:
        self.total += 1
        relation = "m<n" if case.m < case.n else "m=n" if case.m == case.n else "m>n"
        values = factors(case)
        self.pairs.update(itertools.combinations(values.items(), 2))
        kinds = {
            "layout of k": case.layouts[1],
            "values": case.values,
            "d mod 8": str(case.d % 8),
            "max and rms rule": "applies" if case.has_statistics() else "doesn't",
            "rows": relation,
            "out": str(case.out_layout),
            **values,
            "shape of mask": str(case.mask),
            "shape of bias": str(case.bias),
            "dtype of bias": case.bias_dtype if case.bias else "None",
            "value of softcap": str(case.softcap),
            "shape of alibi": str(case.alibi),
            "shape of sinks": str(case.sinks),
            "layout of options": case.option_layout,
            "hidden": "NaN" if case.poison else "numbers",
        }
        for kind, value in kinds.items():
            self.counts.setdefault(kind, Counter())[value] += 1

    def report(self, result: str) -> str:
        """Say what was drawn, and what came of it; conftest.py prints it after the tests."""
        lines = [f"{self.total} problems, {result}"]
        for kind, counter in self.counts.items():
            drawn = ", ".join(f"{value} {count}" for value, count in sorted(counter.items()))
            lines.append(f"  {kind}: {drawn}")
        ((first, second), fewest) = min(self.pairs.items(), key=lambda pair: pair[1])
        rarest = ", ".join(f"{name} {value}" for name, value in (first, second))
        lines.append(f"  {len(self.pairs)} pairs of options, each in {fewest} or more ({rarest})")
        return "\n".join(lines)

    def check(self, at_least: int, *, pairs: int = 1, **wanted: Sequence[str]) -> None:
        """Fail unless `at_least` problems were drawn, some in every class.

        And `pairs` for every two values of `FACTORS`. `wanted` are the classes where not all are.
        """
        full = {
            "layout of k": LAYOUTS,
            "values": VALUES,
            "d mod 8": tuple(map(str, range(8))),
            "max and rms rule": ("applies",),
            "rows": ("m<n", "m=n", "m>n"),
            **FACTORS,
            **{kind.replace("_", " "): values for kind, values in wanted.items()},
        }
        assert self.total >= at_least, f"{self.total} problems drawn, {at_least} wanted"
        for kind, values in full.items():
            missing = [value for value in values if not self.counts[kind][value]]
            assert not missing, f"no problem with {kind} in {missing}"
        for first, second in itertools.combinations(FACTORS, 2):
            for one, other in itertools.product(full[first], full[second]):
                count = self.pairs[(first, one), (second, other)]
                assert count >= pairs, f"{count} problems with {first} {one} and {second} {other}"
