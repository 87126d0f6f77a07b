#!/usr/bin/env bash
# LMDeploy's scheduler, block manager and prefix trie from its wheel, without its GPU dependencies, in an environment of its own.
# usage: .ci/engines/lmdeploy.sh install | test      GPUKEY_ENGINES is the folder of the environments (default build/engines)
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${GPUKEY_ENGINES:-$PWD/build/engines}/lmdeploy/bin/python
case ${1:-} in
install)
  python3 -m venv "$(dirname "$(dirname "$python")")"
  "$python" -m pip install --quiet torch==2.13.0
  "$python" -m pip install --quiet numpy transformers pillow requests pybase64 psutil pyzmq mmengine-lite xgrammar shortuuid blake3 pytest hypothesis \
    'setuptools>=77' wheel
  "$python" -m pip install --quiet --no-deps lmdeploy==0.18.0
  ;;
test)
  "$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
  export OMP_NUM_THREADS=1
  GPUKEY_ENGINE=lmdeploy "$python" -m pytest tests/integrations/lmdeploy
  code=0 && seen=$("$python" -m gpukey audit --engine lmdeploy --no-plugin) || code=$?
  echo "$seen"
  # Without the hooks it must find what it is there to find.
  [ "$code" -eq 1 ] && grep -q "EMBEDDINGS-BLIND REUSE CONFIRMED" <<<"$seen"
  "$python" -m gpukey audit --engine lmdeploy --plugin
  ;;
*)
  echo "usage: $0 install | test" >&2
  exit 2
  ;;
esac
