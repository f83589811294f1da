#!/bin/sh
# What to run on a machine with a GPU, the quick and telling things first: about ten minutes on an
# H100. Results go to a folder; figures worth keeping go to benchmarks/ from there.
#
#   sh scripts/gpu_check.sh OUT [PYTHON]
set -eu
out=${1:?the folder for the results}
python=${2:-python}
mkdir -p "$out"

bench() { # name, options of bench train
    name=$1
    shift
    {
        "$python" -m bothways.cli bench train --device cuda --rounds 9 --out "$out/$name.json" "$@" ||
            echo "bench $name failed; going on"
    } 2>&1 | tee "$out/$name.txt"
}

nvidia-smi | tee "$out/nvidia-smi.txt"
# 1. Is it right? Each form against the CPU; dropout; determinism; no waiting within a step.
{
    "$python" -m pytest -q tests/test_cuda.py tests/test_varlen.py tests/test_device.py ||
        echo "tests failed; going on"
} 2>&1 | tee "$out/tests.txt"
# 2. Where does a step's time go?
bench profile-base-128 --size base --batch 256 --length 128 --profile
# 3. How fast, beside transformers (SDPA, autocast, compiled)?
bench base-128 --size base --batch 256 --length 128 --memory \
    --contenders "bothways" "bothways plain" "transformers bf16" "transformers bf16 compile"
bench base-512 --size base --batch 64 --length 512 --memory \
    --contenders "bothways" "bothways plain" "transformers bf16" "transformers bf16 compile"
bench base-512-no-attention-dropout --size base --batch 64 --length 512 --attention_dropout 0 \
    --contenders "bothways" "transformers bf16" "transformers bf16 compile"
bench mini-128 --size mini --batch 256 --length 128 \
    --contenders "bothways" "transformers bf16" "transformers bf16 compile"
