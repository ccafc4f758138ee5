#!/usr/bin/env bash
# Runs sanitizer_problems.py under compute-sanitizer's memcheck, racecheck, initcheck and synccheck, and fails on
# any finding. Before that each tool must find a planted fault, or its silence would mean nothing.
#
#     tests/gpu/run_sanitizers.sh [memcheck|racecheck|initcheck|synccheck ...]
#
# PYTHON names the interpreter (python3), SANITIZER the tool (compute-sanitizer).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
sanitizer=${SANITIZER:-compute-sanitizer}
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
(($#)) || set -- memcheck racecheck initcheck synccheck

command -v "$sanitizer" >/dev/null || {
    echo "no $sanitizer on the PATH: install the CUDA toolkit, or name it in SANITIZER" >&2
    exit 1
}

# Also compiles every kernel into CuPy's cache, so that the tools only run them.
echo "== without a tool"
"$python" tests/gpu/sanitizer_problems.py

failed=()
for tool in "$@"; do
    echo "== $tool"
    # A faulty kernel may end its process; what counts is what the tool says.
    timeout 120 "$sanitizer" --tool "$tool" "$python" tests/gpu/sanitizer_problems.py --planted "$tool" \
        >"$logs/planted" 2>&1 || true
    if ! grep -Eq 'SUMMARY: [1-9][0-9]* (error|hazard)' "$logs/planted"; then
        tail -n 40 "$logs/planted"
        echo "$tool did not find the planted fault" >&2
        failed+=("$tool (planted fault)")
        continue
    fi
    status=0
    timeout 1200 "$sanitizer" --tool "$tool" --error-exitcode 9 "$python" tests/gpu/sanitizer_problems.py \
        >"$logs/clean" 2>&1 || status=$?
    if ((status)) || ! grep -Eq 'SUMMARY: 0 (error|hazard)' "$logs/clean"; then
        head -n 200 "$logs/clean"
        echo "$tool: exit status $status" >&2
        failed+=("$tool")
    else
        grep -E 'SUMMARY|problems' "$logs/clean"
    fi
done

if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
