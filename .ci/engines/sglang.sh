#!/usr/bin/env bash
# SGLang's radix cache and multimodal items from its wheel, without its GPU dependencies, in an environment of its own.
# usage: .ci/engines/sglang.sh install | test      GPUKEY_ENGINES is the folder of the environments (default build/engines)
set -euo pipefail
cd "$(dirname "$0")/../.."
env=${GPUKEY_ENGINES:-$PWD/build/engines}/sglang
case ${1:-} in
install)
  python3 -m venv "$env"
  "$env/bin/python" -m pip install --quiet torch==2.13.0
  "$env/bin/python" -m pip install --quiet triton==3.8.0 'transformers==5.19.*' numpy blake3 pytest hypothesis apache-tvm-ffi==0.1.11 aiohttp compressed-tensors \
    dill fastapi gguf numba ipython loguru msgspec openai orjson partial-json-parser pillow psutil pybase64 pydantic pyyaml pyzmq regex requests rich sentencepiece starlette tqdm uvicorn
  "$env/bin/python" -m pip install --quiet --no-deps sglang==0.5.23 lmcache==0.5.6
  ;;
test)
  GPUKEY_ENGINE=sglang PYTHONPATH=$PWD "$env/bin/python" -m pytest -m engine tests/integrations/sglang
  ;;
*)
  echo "usage: $0 install | test" >&2
  exit 2
  ;;
esac
