#!/bin/bash
# Ask the job of this container whether it decides and delivers, and print what keeps it from that.
#
# By bash alone, in a few milliseconds: `popstream status --ready` says the same, and starts a Python each time.
set -euo pipefail

exec 3<>"/dev/tcp/127.0.0.1/$POPSTREAM_METRICS_PORT"
printf 'GET /ready HTTP/1.0\r\n\r\n' >&3
IFS= read -r status <&3
while IFS= read -r header && [[ "$header" != $'\r' ]]; do :; done <&3
cat <&3
[[ "$status" == *' 200 '* ]]
