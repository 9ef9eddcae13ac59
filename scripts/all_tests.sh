#!/usr/bin/env bash
# Runs the suites that are named, each as `make SUITE`, goes on after one that fails, and prints a table of them all.
#
# Each suite's output is also in var/all-tests/SUITE.log. The exit code is 1 if a suite failed.
set -uo pipefail
trap 'exit 130' INT
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly logs=var/all-tests
mkdir -p "$logs"
status=0
table=()

# The last line of a suite's output that says what ran: pytest's closing line, or the last line there is.
closing_line() {
  local line
  line=$(grep -E '^=+ .+ in [0-9.]+s.* =+$' "$1" | tail -n 1 | sed 's/^=* //; s/ =*$//')
  if [[ -z "$line" ]]; then line=$(grep -v '^make' "$1" | grep . | tail -n 1); fi
  printf '%.80s' "$line"
}

for suite in "$@"; do
  printf '\n== make %s\n' "$suite"
  started=$SECONDS
  result=ok
  "${MAKE:-make}" --no-print-directory "$suite" 2>&1 | tee "$logs/$suite.log" || { result=FAILED status=1; }
  table+=("$(printf '%-12s %-6s %6d s  %s' "$suite" "$result" "$((SECONDS - started))" "$(closing_line "$logs/$suite.log")")")
done

printf '\n== suites\n%-12s %-6s %8s  %s\n' suite result duration "what ran"
printf '%s\n' "${table[@]}"
exit "$status"
