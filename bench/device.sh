#!/usr/bin/env bash
# Everything that needs a GPU, in at most 8 minutes, without a network: build for compute capability 9.0, the gpu tests,
# compute-sanitizer, timings. JSON and logs go to $OUT (default build/device); the last line says what failed.
#
#   bench/device.sh              on a machine with a GPU, nvcc, torch, setuptools >= 77
#   bench/device.sh --rehearse   anywhere: the same stages on a CPU with small sizes, GPU parts skipped with a reason
#
# Wheels that the machine lacks (blake3, perhaps setuptools) lie in carry/wheels; PYTHON is the interpreter with torch.
# PIPE_INSTRUCTIONS: instructions of the integer pipe a compression on sm_90, which tests/sass counts and prints.
set -uo pipefail
cd "$(dirname "$0")/.."
export OUT=${OUT:-$PWD/build/device} PYTHON=${PYTHON:-python3} SITE=$PWD/build/device-site
export PYTHONPATH=$SITE:$PWD/bench:$PWD/tests/_support PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore HF_HUB_OFFLINE=1
export TORCH_CUDA_ARCH_LIST=9.0 GPUKEY_BUILD=require
rehearse=()
case "$*" in
'') ;;
--rehearse) rehearse=(--rehearse) ;;
*)
  echo "usage: $0 [--rehearse]" >&2
  exit 2
  ;;
esac
mkdir -p "$OUT"
failed=()
BUDGET=470

stage() { # SECONDS NAME COMMAND...: run for at most so long, keep the log, remember a failure
  local limit=$1 name=$2 start=$SECONDS left=$((BUDGET - SECONDS))
  shift 2
  if [ $left -lt 5 ]; then skip "$name" "the time is spent"; failed+=("$name"); return; fi
  [ "$limit" -lt $left ] || limit=$left
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1
  local code=$?
  tail -n 25 "$OUT/$name.log"
  echo "--- $name: exit $code, $((SECONDS - start)) s"
  [ $code -eq 0 ] || failed+=("$name")
}

skip() { echo "--- $1: skipped, $2"; }

install() {
  rm -rf "$SITE"
  if compgen -G 'carry/wheels/*.whl' >/dev/null; then
    $PYTHON -m pip install --no-deps --target "$SITE" carry/wheels/*.whl || return
  fi
  if command -v nvcc >/dev/null; then export GPUKEY_CUDA=1; fi
  # The wheel is built apart and unpacked over what was carried.
  $PYTHON -m pip wheel --no-deps --no-build-isolation --wheel-dir build/device-wheel . &&
    $PYTHON -m pip install --no-deps --upgrade --target "$SITE" build/device-wheel/gpukey-*.whl &&
    $PYTHON -c 'import json, gpukey.backends as b; print(json.dumps(b.status(), indent=1))'
}
export -f install

stage 150 build bash -c install
if [ ${#rehearse[@]} -eq 0 ]; then
  nvidia-smi >"$OUT/nvidia-smi.log" 2>&1
  stage 110 tests $PYTHON -m pytest -p no:cacheprovider -m gpu --maxfail=20 tests/gpu tests/triton tests/integrations/vllm/test_device.py
  if command -v compute-sanitizer >/dev/null; then
    stage 40 memcheck compute-sanitizer --tool memcheck --error-exitcode 1 $PYTHON bench/device_sanitize.py
    stage 40 racecheck compute-sanitizer --tool racecheck --error-exitcode 1 $PYTHON bench/device_sanitize.py
  else
    skip memcheck "compute-sanitizer is not on PATH"
  fi
else
  stage 110 tests $PYTHON -m pytest -p no:cacheprovider -m gpu tests/gpu tests/triton tests/integrations/vllm/test_device.py # collected, then skipped with a reason
  skip memcheck "no GPU in a rehearsal"
fi
stage 30 same-bytes $PYTHON bench/device_sanitize.py "${rehearse[@]}"
pipe=(--pipe-instructions "${PIPE_INSTRUCTIONS:-469}")
stage 110 kernels $PYTHON bench/device_kernels.py "$OUT/kernels.json" "${pipe[@]}" "${rehearse[@]}"
stage 90 ttft $PYTHON bench/device_ttft.py "$OUT/ttft.json" "${rehearse[@]}"

echo "all stages: $SECONDS s"
if [ ${#failed[@]} -gt 0 ]; then echo "FAILED: ${failed[*]}"; exit 1; fi
echo "everything passed"
