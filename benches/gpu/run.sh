#!/bin/sh
# Checks and measures the CUDA kernels on this machine's card, in less than six minutes, and prints one table.
#
#   benches/gpu/run.sh [--wheels FOLDER] [words of run.py]
#
# It wants python3 with NumPy and CuPy (and ml_dtypes, for bfloat16). PyTorch, FlashInfer and compute-sanitizer are used
# where they are. --wheels names a folder with an abi3 wheel of Octavo, built elsewhere: the whole model then runs on the
# scheduler. PYTHON names another interpreter, OCTAVO_COMMIT the commit where there is no git.
set -eu
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3}
WHEELS=
if [ "${1:-}" = --wheels ]; then
  WHEELS=${2:?"run.sh: --wheels names no folder"}
  shift 2
fi

command -v "$PYTHON" >/dev/null 2>&1 || { echo "benches/gpu: there is no $PYTHON" >&2; exit 2; }
"$PYTHON" -c 'import numpy' || { echo "benches/gpu: $PYTHON has no NumPy" >&2; exit 2; }
PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH

SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT
# Kernels are compiled anew, unless somebody keeps them.
CUPY_CACHE_DIR=${CUPY_CACHE_DIR:-$SCRATCH/kernels}
export CUPY_CACHE_DIR

if [ -n "$WHEELS" ]; then
  wheel=$(find "$WHEELS" -name 'octavo-*.whl' | sort | tail -n 1)
  [ -n "$wheel" ] || { echo "benches/gpu: there is no wheel of octavo in $WHEELS" >&2; exit 2; }
  "$PYTHON" -m zipfile -e "$wheel" "$SCRATCH/wheel"
  OCTAVO_MODEL_PATH=$SCRATCH/wheel:$PYTHONPATH
  export OCTAVO_MODEL_PATH
fi

"$PYTHON" benches/gpu/run.py "$@"
