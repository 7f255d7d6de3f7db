#!/usr/bin/env bash
# Repeats the speed figures of docs/benchmarks.md, compared with the official SDAR code, llama.cpp and the machine's limits,
# both sides of a comparison in one run. If the other program of a part is missing, the part is skipped and says what to install.
# Exit code 0 if something ran and nothing failed.
set -uo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT" || exit 1

PARTS=(step prefill llama attention recording policies batch analysis)
# The tests' Python has what all parts but step and prefill need.
VENVS=("${BLOCKSCOPE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/blockscope}"/venv-*/bin/python)
BENCH_PYTHON=${BENCH_PYTHON:-${VENVS[0]}}
command -v "$BENCH_PYTHON" >/dev/null || BENCH_PYTHON=python3
SDAR=${SDAR:-} LLAMA_CPP=${LLAMA_CPP:-} LLAMA_DRIVER=${LLAMA_DRIVER:-}
export BLOCKSCOPE_BINARY=${BLOCKSCOPE_BINARY:-$ROOT/build/release/bin/blockscope}
BENCHES=build/release/tests MODELS=build/bench/models OUT=build/bench ROUNDS=3 THREADS=$(nproc)
SIZES="5m 150m 0.6b" CONTEXTS="256 2048"

usage() {
  cat <<END
Usage: scripts/bench.sh [OPTION VALUE]... [PART]...

Parts (default: all): ${PARTS[*]}
  step       a decode step and its forward pass, official SDAR code and the limit; bf16, and float32 at prompt 256
  prefill    2,048 and 8,192 tokens, official SDAR code and the limit
  llama      a decode step, compared with libllama
  attention  the attention operators, compared with torch's
  recording  what each recorder level adds
  policies   flashblock and mage at 8k and 32k, compared with exact
  batch      batches 1, 4, 16 with 1 and all threads, compared with the limit
  analysis   cosine over a 2 GB trace, compared with a raw read

Options (environment in brackets):
  --sdar FOLDER         work tree of JetAstra/SDAR [SDAR]; step, prefill
  --python FILE         Python with torch, safetensors, h5py, and for step and prefill transformers 4.52.4 and einops;
                        default: that of the tests [BENCH_PYTHON]
  --llama-cpp FOLDER    llama.cpp's source, for its converter [LLAMA_CPP]; llama
  --llama-driver FILE   built as scripts/bench/llama_block_pair.py says [LLAMA_DRIVER]; llama
  --binary FILE         blockscope [BLOCKSCOPE_BINARY]
  --benches FOLDER      bench_kernels and bench_analysis (default $BENCHES)
  --models FOLDER       random checkpoints, made once (default $MODELS)
  --sizes LIST          of "$SIZES" (default), for step, llama and recording
  --contexts LIST       prompts of step and llama (default "$CONTEXTS")
  --rounds N            turns of every pair (default $ROUNDS)
  --threads N           (default $THREADS)
  --out FOLDER          where PART.txt go (default $OUT)
END
}

selected=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --*) [ $# -gt 1 ] || { echo "error: $1 needs a value. HINT: --help" >&2 && exit 2; } ;;&
    --sdar) SDAR=$2 ;;
    --python) BENCH_PYTHON=$2 ;;
    --llama-cpp) LLAMA_CPP=$2 ;;
    --llama-driver) LLAMA_DRIVER=$2 ;;
    --binary) BLOCKSCOPE_BINARY=$2 ;;
    --benches) BENCHES=$2 ;;
    --models) MODELS=$2 ;;
    --sizes) SIZES=$2 ;;
    --contexts) CONTEXTS=$2 ;;
    --rounds) ROUNDS=$2 ;;
    --threads) THREADS=$2 ;;
    --out) OUT=$2 ;;
    *)
      [[ " ${PARTS[*]} " == *" $1 "* ]] || { echo "error: no part or option '$1'. HINT: --help" >&2 && exit 2; }
      selected+=("$1")
      ;;
  esac
  case $1 in --*) shift 2 ;; *) shift ;; esac
done
[ ${#selected[@]} -gt 0 ] || selected=("${PARTS[@]}")
mkdir -p "$OUT" "$MODELS"

python() { "$BENCH_PYTHON" -u "$@"; }

# skip WHAT: ends a part as skipped and prints what is missing; need_*: does so if the thing is missing.
skip() { echo "skipped: $1" && return 77; }
need_binary() { [ -x "$BLOCKSCOPE_BINARY" ] || skip "no $BLOCKSCOPE_BINARY. HINT: cmake --build --preset release"; }
need_python() { # MODULE...
  local modules="$*"
  python -c "import ${modules// /, }" 2>/dev/null ||
    skip "$BENCH_PYTHON lacks one of: $*. HINT: pip install torch==2.11.0 transformers==4.52.4 safetensors numpy h5py einops, then --python"
}
need_sdar() {
  [ -f "$SDAR/generate.py" ] || { skip "no official SDAR code. HINT: git clone https://github.com/JetAstra/SDAR, then --sdar" || return; }
  python -c 'import torch, safetensors, h5py, einops, transformers as t; assert t.__version__.startswith("4.52")' 2>/dev/null ||
    skip "$BENCH_PYTHON is not the official code's. HINT: pip install torch==2.11.0 transformers==4.52.4 safetensors numpy h5py einops, then --python"
}
need_bench() { [ -x "$BENCHES/$1" ] || skip "no $BENCHES/$1. HINT: cmake --build --preset release, then --benches"; }

# model SIZE: its folder, made if it is missing. All have SDAR's names; 150m and 0.6b its vocabulary of 151,936.
model() {
  local folder=$MODELS/sdar-$1 shape=()
  case $1 in
    5m) shape=(--layers 6 --hidden 256 --intermediate 640 --heads 4 --kv-heads 2 --head-dim 64 --vocab 4096) ;;
    150m) shape=(--layers 12 --hidden 512 --intermediate 1536 --heads 16 --kv-heads 8 --head-dim 128) ;;
    0.6b) ;; # Qwen3-0.6B
    *) echo "error: no size '$1', only 5m, 150m and 0.6b" >&2 && return 1 ;;
  esac
  [ -f "$folder/config.json" ] ||
    python scripts/bench/make_random_checkpoint.py "$folder" --block-length 32 "${shape[@]}" >&2 || return
  echo "$folder"
}

pair() { # SIZE OPTION...
  local folder
  folder=$(model "$1") && python scripts/bench/sdar_pair.py "$SDAR" "$folder" --threads "$THREADS" --rounds "$ROUNDS" "${@:2}"
}

part_step() {
  local size context
  need_binary && need_sdar || return
  for size in $SIZES; do
    for context in $CONTEXTS; do
      pair "$size" --context "$context" || return
    done
    pair "$size" --context 256 --gen-length 32 --dtype float32 || return
  done
  python scripts/bench/sdar_pair.py "$SDAR" models/needle --block-length 16 --threads "$THREADS" --rounds "$ROUNDS"
}

part_prefill() {
  need_binary && need_sdar || return
  pair 0.6b --prefill --context 2048 && pair 0.6b --prefill --context 8192 --rounds 1
}

part_llama() {
  local size context type folder file
  need_binary && need_python torch safetensors h5py || return
  if [ ! -x "$LLAMA_DRIVER" ] || [ ! -d "$LLAMA_CPP/conversion" ]; then
    skip "no libllama. HINT: build it as scripts/bench/llama_block_pair.py says, then --llama-driver and --llama-cpp"
    return
  fi
  for size in $SIZES; do
    for type in f32 bf16; do
      folder=$(model "$size") && file=$folder-$type.gguf || return
      [ -f "$file" ] || { python scripts/bench/llama_cpp/convert.py "$LLAMA_CPP" "$folder" "$file.new" --type $type 2>"$OUT/convert.log" &&
        mv "$file.new" "$file"; } || { echo "conversion failed, see $OUT/convert.log" && return 1; }
    done
    python scripts/bench/llama_block_pair.py "$LLAMA_DRIVER" "$folder" "$folder-f32.gguf" --dtype float32 --rounds 1 --threads "$THREADS" || return
    for context in $CONTEXTS; do
      python scripts/bench/llama_block_pair.py "$LLAMA_DRIVER" "$folder" "$folder-bf16.gguf" --no-logits --context "$context" \
        --rounds "$ROUNDS" --threads "$THREADS" || return
    done
  done
}

part_attention() {
  need_bench bench_kernels && "$BENCHES/bench_kernels" --threads "$THREADS"
}

part_recording() {
  local size folder
  need_binary && need_python torch safetensors || return
  for size in $SIZES; do
    folder=$(model "$size") || return
    "$BLOCKSCOPE_BINARY" bench "$folder" --levels off,trajectory,summary,sets,outputs,full --context 256 --gen-length 32 \
      --runs $((2 * ROUNDS - 1)) --threads "$THREADS" || return
  done
  "$BLOCKSCOPE_BINARY" bench models/needle --levels off,trajectory,summary,sets,outputs,full --context 1024 \
    --gen-length 64 --runs $((2 * ROUNDS - 1)) --threads "$THREADS"
}

part_policies() {
  local folder
  need_binary && need_python torch safetensors && folder=$(model 0.6b) || return
  "$BLOCKSCOPE_BINARY" study time "$folder" --contexts 8192,32768 --k 1024 --blocks 2 --repeats "$ROUNDS" --no-figures \
    --threads "$THREADS" -o "$OUT/policies"
}

part_batch() {
  local folder
  need_binary && need_python torch numpy && folder=$(model 0.6b) || return
  python scripts/bench/batch_limit.py "$folder" --thread-counts "1,$THREADS" --rounds "$ROUNDS"
}

part_analysis() {
  local trace=$MODELS/trace-2gib.h5
  need_bench bench_analysis || return
  [ -f "$trace" ] || "$BENCHES/bench_analysis" make "$trace" --gib 2 || return
  "$BENCHES/bench_analysis" run "$trace" --repeat 5 --threads "$THREADS"
}

echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, $(free -g | awk '/^Mem/ { print $2 }') GiB," \
  "AVX-512: $(grep -qw avx512f /proc/cpuinfo && echo yes || echo no), bf16: $(grep -qw avx512_bf16 /proc/cpuinfo && echo yes || echo no)," \
  "AMX: $(grep -qw amx_bf16 /proc/cpuinfo && echo yes || echo no); $(date -u +%F); load $(cut -d' ' -f 1-3 /proc/loadavg)" |
  tee "$OUT/machine.txt"
ran=0 failed=0
for part in "${selected[@]}"; do
  echo "== $part"
  "part_$part" 2>&1 | tee "$OUT/$part.txt"
  case ${PIPESTATUS[0]} in
    0) ran=$((ran + 1)) ;;
    77) ;;
    *) echo "FAILED: $part, see $OUT/$part.txt" && failed=$((failed + 1)) ;;
  esac
done
echo "$ran of ${#selected[@]} parts ran, $failed failed; $OUT has what they printed"
[ "$failed" -eq 0 ] && [ "$ran" -gt 0 ]
