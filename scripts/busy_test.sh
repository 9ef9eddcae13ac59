#!/usr/bin/env bash
# Runs `make test` several times beside processes that use every core three times over: no test may fail because the
# machine is busy. The exit code is 1 if a run failed; their outputs are in var/busy-test.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly runs=$1 logs=var/busy-test
mkdir -p "$logs"
burners=()
trap 'kill "${burners[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

for ((number = 0; number < 3 * $(nproc); number++)); do
  (while :; do :; done) &
  burners+=("$!")
done

status=0
for ((run = 1; run <= runs; run++)); do
  printf '\n== make test, run %d of %d\n' "$run" "$runs"
  make --no-print-directory test 2>&1 | tee "$logs/run-$run.log" || status=1
done

printf '\n== runs\n'
grep -hE '^=+ .+ in [0-9.]+s.* =+$|^FAILED|^ERROR' "$logs"/run-*.log
exit "$status"
