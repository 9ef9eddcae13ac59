#!/usr/bin/env bash
# Set up the project: .venv with the locked packages and the project itself, and the jars in var/jars.
#
# Idempotent. Each finished step leaves a stamp with the hash of its inputs: a second run does nothing, and an
# interrupted run continues. `--check-only` checks the machine and installs nothing.
#
#   PYTHON     the Python to use, instead of the newest of python3.13, 3.12, 3.11 that works
#   JAVA_HOME  the Java to use, instead of the one on PATH
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly free_gib_min=4
readonly venv=.venv
readonly lock=requirements/dev.txt

fail() {
  printf 'popstream set-up: %s\n' "$1" >&2
  exit 1
}

say() { printf '%s\n' "$1"; }

# --- preflight ------------------------------------------------------------------------------------------------------

# "3.12" for a Python that runs, nothing for one that does not (a version manager's shim of an inactive version is on
# PATH, and fails when called).
python_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

is_supported_python() {
  case "$1" in 3.11 | 3.12 | 3.13) return 0 ;; *) return 1 ;; esac
}

# Sets python to the one to use.
find_python() {
  local candidate version found=""
  local candidates=(python3.13 python3.12 python3.11 python3)
  if [[ -n "${PYTHON:-}" ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    version=$(python_version "$candidate")
    if is_supported_python "$version"; then
      python=$candidate
      return
    fi
    found=${version:-$found}
  done
  local todo="install Python 3.11, 3.12 or 3.13, or name one by PYTHON=/path/to/python3.12"
  if [[ -z "$found" ]]; then fail "no working Python found: $todo"; fi
  if [[ "$found" =~ ^3\.([0-9]+)$ && "${BASH_REMATCH[1]}" -gt 13 ]]; then
    fail "Python $found is too new for PySpark's dependencies: $todo"
  fi
  fail "Python $found is too old: $todo"
}

check_venv_module() {
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments: install its venv package (on Debian and Ubuntu: python$(python_version "$python")-venv)"
}

# Sets java_says to what Java says of its version.
check_java() {
  local java=java version todo="install a Java from 17 to 21 (17 is what we test with), or point JAVA_HOME at one"
  if [[ -n "${JAVA_HOME:-}" ]]; then java=$JAVA_HOME/bin/java; fi
  command -v "$java" >/dev/null || fail "no Java found${JAVA_HOME:+ at JAVA_HOME ($JAVA_HOME)}: $todo"
  # The line is: openjdk version "17.0.15" 2025-04-15; before Java 9 the major version came second: "1.8.0_402".
  java_says=$("$java" -version 2>&1) || true
  version=$(sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' <<<"$java_says" | head -n 1)
  if [[ -z "$version" ]]; then fail "$java does not say its version: $todo"; fi
  if ((version < 17)); then fail "Java $version is too old for Spark 4: $todo"; fi
  if ((version > 21)); then fail "Java $version is too new for Spark 4: $todo"; fi
}

# Packages and jars take 1.5 GiB, pip's cache another 1; the rest is for running the job.
check_disk() {
  local place free_kib
  for place in "$PWD" "${HOME:-$PWD}"; do
    if [[ ! -d "$place" ]]; then continue; fi
    free_kib=$(df -Pk "$place" | awk 'END { print $4 }')
    if ((free_kib < free_gib_min * 1024 * 1024)); then
      fail "$((free_kib / 1024)) MiB are free at $place, $free_gib_min GiB are needed: free some space there"
    fi
  done
}

find_python
check_venv_module
check_java
check_disk
if [[ "${1:-}" == --check-only ]]; then
  say "popstream set-up: this machine is fit ($python is $(python_version "$python"))"
  exit 0
fi

# --- steps ----------------------------------------------------------------------------------------------------------

digest_of() { cat "$@" | sha256sum | cut -d ' ' -f 1; }

is_done() { [[ -f "$venv/.done-$1" && "$(<"$venv/.done-$1")" == "$2" ]]; }

mark_done() { printf '%s' "$2" >"$venv/.done-$1"; }

# Two set-ups at once would write into the same environment: the second one waits, and finds everything done.
mkdir -p var
exec 9>var/setup.lock
if command -v flock >/dev/null && ! flock --nonblock 9; then
  say "another set-up is running here, waiting for it"
  flock 9
fi

# Scripts in an environment contain its path, and compiled packages its Python version: if either changes, make a new one.
environment="$PWD $(python_version "$python")"
if ! is_done environment "$environment" || [[ -z "$(python_version "$venv/bin/python")" ]]; then
  say "[1/5] virtual environment: $venv, $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  mark_done environment "$environment"
fi

packages=$(digest_of "$lock")
if ! is_done packages "$packages"; then
  count=$(grep -c '^[A-Za-z0-9]' "$lock")
  say "[2/5] python packages: up to $count, about 600 MB when none is cached"
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --require-hashes -r "$lock" |
    awk -v count="$count" '
      /^Collecting / && ++seen % 10 == 0 { printf "      %d of %d here\n", seen, count; fflush() }
      /^Installing collected/ { print "      unpacking, this takes a minute"; fflush() }' ||
    fail "pip could not install the packages (its reason is above): run make setup again, it continues from here"
  mark_done packages "$packages"
fi

project=$(digest_of pyproject.toml)
if ! is_done project "$project"; then
  say "[3/5] popstream itself, editable"
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps --no-build-isolation -e .
  mark_done project "$project"
fi

if [[ ! -f var/jars/resolved ]]; then
  say "[4/5] jars: Delta, the Kafka source and a Kafka broker, about 70 MB"
fi
"$venv/bin/python" -m connectors.jars.resolve --var var

# An archive is for one Java, one list of jars and one PySpark.
classes=$(printf '%s\n' "$java_says" "$packages" "$(digest_of connectors/jars/sha256.txt)" | digest_of -)
if ! is_done classes "$classes"; then
  say "[5/5] class archives, with which Spark and Kafka start in half the time"
  "$venv/bin/python" -m pipelines.process.class_archives --var var
  mark_done classes "$classes"
fi
