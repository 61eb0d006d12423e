#!/usr/bin/env bash
# Finds out on a GPU what can be found out there alone: tools/gpu.sh STAGE... (see CONTRIBUTING.md, and --help).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$root/packages/integrations/src:$root/packages/bench/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -W ignore -m bench.gpu "$@"
