#!/bin/sh
# What to run on a machine with a GPU, the quick and telling things first: about ten minutes on an
# H100. Results go to a folder; figures worth keeping go to benchmarks/ from there. Run it in the
# repository's root; the package need not be installed, but what it depends on (dependencies in
# pyproject.toml; images with torch and transformers usually lack jsonargparse and sentencex).
#
#   sh scripts/gpu_check.sh OUT [PYTHON [PART ...]]
#
# PART: tests base-128 base-512 mini; default: all of them. Compiling the peer takes minutes
# in base-128 and base-512 each, twice with --memory.
set -eu
out=${1:?the folder for the results}
python=${2:-python}
[ $# -gt 2 ] && shift 2 && parts=$* || parts="tests base-128 base-512 mini"
for part in $parts; do
    case $part in tests | base-128 | base-512 | mini) ;; *)
        echo "no part is called $part" >&2
        exit 2
        ;;
    esac
done
mkdir -p "$out"
rm -f "$out/failed"
export PYTHONPATH="$(pwd)/src${PYTHONPATH:+:$PYTHONPATH}"

bench() { # name, options of bench train
    name=$1
    shift
    set -- --out "$out/$name.json" "$@"
    {
        "$python" -m bothways.experiments.bench train --device cuda --rounds 9 "$@" ||
            echo "bench $name failed; going on" | tee -a "$out/failed"
    } 2>&1 | tee "$out/$name.txt"
}

nvidia-smi | tee "$out/nvidia-smi.txt"
"$python" -c "import torch, bothways.cli; print('torch', torch.__version__, torch.version.cuda)"
for part in $parts; do
    case $part in
    tests) # Is it right? Each form against the CPU; dropout; determinism; no waiting within a step.
        {
            "$python" -m pytest -q tests/training/test_cuda.py tests/model/test_varlen.py tests/model/test_device.py ||
                echo "tests failed; going on" | tee -a "$out/failed"
        } 2>&1 | tee "$out/tests.txt"
        ;;
    base-128) # How fast, beside transformers (SDPA, autocast, compiled)?
        bench base-128 --size base --batch 256 --length 128 --memory \
            --contenders "bothways" "bothways plain" "transformers bf16" "transformers bf16 compile"
        bench base-128-no-attention-dropout \
            --size base --batch 256 --length 128 --attention-dropout 0 \
            --contenders "bothways" "transformers bf16" "transformers bf16 compile"
        ;;
    base-512)
        bench base-512 --size base --batch 64 --length 512 --memory \
            --contenders "bothways" "bothways plain" "transformers bf16" "transformers bf16 compile"
        bench base-512-no-attention-dropout \
            --size base --batch 64 --length 512 --attention-dropout 0 \
            --contenders "bothways" "transformers bf16" "transformers bf16 compile"
        ;;
    mini)
        bench mini-128 --size mini --batch 256 --length 128 \
            --contenders "bothways" "transformers bf16" "transformers bf16 compile"
        ;;
    esac
done
[ ! -e "$out/failed" ] || exit 1
