#!/bin/sh
# The speed of training on a CPU beside transformers: the comparisons of README and benchmarks/, the
# quick ones first. Nothing else should be running. Results go to a folder; figures worth keeping go
# to benchmarks/ from there. Run it in the repository's root.
#
#   sh scripts/cpu_check.sh OUT CORPUS GLUE MODEL [PYTHON [PART ...]]
#
# CORPUS: made by `bothways corpus`. GLUE: the folder with MRPC/ and SST-2/. MODEL: all-MiniLM-L6-v2.
# PART: mini real base memory mrpc sst2 kernels plan; default: all of them.
# What precision is compared follows from `--precision auto`: where bf16 is slower than fp32, fp32
# alone.
set -eu
usage="usage: sh scripts/cpu_check.sh OUT CORPUS GLUE MODEL [PYTHON [PART ...]]"
out=${1:?$usage}
corpus=${2:?$usage}
glue=${3:?$usage}
model=${4:?$usage}
python=${5:-.venv/bin/python}
[ $# -gt 5 ] && shift 5 && parts=$* || parts="mini real base memory mrpc sst2 kernels plan"
for part in $parts; do
    case $part in mini | real | base | memory | mrpc | sst2 | kernels | plan) ;; *)
        echo "no part is called $part" >&2
        exit 2
        ;;
    esac
done
mkdir -p "$out"
rm -f "$out/failed"
precision=$("$python" -c "from bothways.model.device import choose_precision as c; print(c('auto').name)")
lscpu | tee "$out/lscpu.txt"

run() { # name, command
    name=$1
    shift
    {
        "$@" || echo "$name failed; going on" | tee -a "$out/failed"
    } 2>&1 | tee "$out/$name.txt"
}

bench() { # name, options of bench train
    name=$1
    shift
    if [ "$precision" = bf16 ]; then
        set -- "$@" --contenders bothways "bothways fp32" "bothways plain" \
            "transformers fp32" "transformers bf16"
    else
        set -- "$@" --contenders "bothways fp32" "bothways plain" "transformers fp32"
    fi
    run "$name" "$python" -m bothways.experiments.bench train --device cpu --out "$out/$name.json" "$@"
}

finetuning() { # task, epochs
    compare="$python scripts/compare_finetuning.py $glue $model --task $1 --epochs $2"
    runs="--runs $out/runs"
    if [ "$precision" = bf16 ]; then
        # shellcheck disable=SC2086 # words
        run "$1" $compare $runs --ours 2 --theirs 2 --out "$out/$1.json"
        # shellcheck disable=SC2086
        run "$1-fp32" $compare $runs --precision fp32 --ours 0 --theirs 1 --out "$out/$1-fp32.json"
    else
        # shellcheck disable=SC2086
        run "$1-fp32" $compare $runs --precision fp32 --ours 2 --theirs 1 --out "$out/$1-fp32.json"
    fi
}

for part in $parts; do
    case $part in
    mini) bench mini --size mini --batch 64 ;;
    real) bench real --size mini --batch 32 --corpus "$corpus" ;;
    base) bench base --size base --batch 16 --rounds 5 ;;
    memory) bench memory --size base --batch 32 --rounds 1 --memory true ;;
    mrpc) finetuning mrpc 3 ;;
    sst2) finetuning sst2 1 ;;
    kernels)
        run kernels "$python" scripts/compare_kernels.py "$corpus" --precision "$precision" \
            --out "$out/kernels" --plot "$out/kernels.png"
        ;;
    plan) run plan "$python" scripts/measure_plan.py "$corpus" --out "$out/plan.json" ;;
    esac
done
[ ! -e "$out/failed" ] || exit 1
