// Times split_attention's first kernel with tile shapes other than the shipped ones, to choose
// those. No torch: nvcc -std=c++20 -O3 -I. -gencode arch=compute_90a,code=sm_90a
// tests/gpu/bench_split_shapes.cu Prints microseconds (median of 15, L2 flushed) and TB/s of K and
// V read once.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/join_device.cuh"
#include "kernels/cuda/split_attention_device.cuh"

namespace blockscope::cuda {
namespace {

constexpr int kRepeats = 15;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

__global__ void fill(BFloat16* values, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    values[i] =
        round_to<BFloat16>(static_cast<float>((i * 2654435761u >> 7) % 1021) / 500.0f - 1.0f);
  }
}

struct Problem {
  SplitCall call;
  double bytes;
};

float* floats(int64_t count) {
  float* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(float)));
  return memory;
}

Problem make(int sequences, int length, int queries, int dim) {
  Problem problem;
  SplitCall& call = problem.call;
  call.type = DeviceFloat::kBFloat16;
  call.sequences = sequences;
  call.heads = 32;
  call.kv_heads = 8;
  call.group = 4;
  call.queries = queries;
  call.dim = dim;
  call.internal_keys = queries;
  call.scale_log2 = 1.4426950408889634f / std::sqrt(static_cast<float>(dim));
  call.max_chunks = num_chunks(length);
  for (int s = 0; s < sequences; ++s) call.lengths[s] = length;
  const auto rows = [&](int heads, int64_t count) {
    BFloat16* memory = nullptr;
    const int64_t elements = sequences * heads * count * dim;
    check(cudaMalloc(&memory, elements * 2));
    fill<<<1024, 256>>>(memory, elements);
    return DeviceRows{memory, heads * count * dim, count * dim, dim};
  };
  call.q = rows(32, queries);
  call.k_ext = rows(8, length);
  call.v_ext = rows(8, length);
  call.k_in = rows(8, queries);
  call.v_in = rows(8, queries);
  call.states = floats(state_floats(call));
  const int64_t results = int64_t{sequences} * 32 * queries;
  call.out = floats(results * dim);
  call.external = floats(results * dim);
  call.internal = floats(results * dim);
  call.lse_external = floats(results);
  call.lse_internal = floats(results);
  problem.bytes = 2.0 * sequences * 8 * (length + queries) * dim * 2;
  return problem;
}

void release(const Problem& problem) {
  const SplitCall& call = problem.call;
  for (const void* memory :
       {call.q.data, call.k_ext.data, call.v_ext.data, call.k_in.data, call.v_in.data,
        static_cast<const void*>(call.states), static_cast<const void*>(call.out),
        static_cast<const void*>(call.external), static_cast<const void*>(call.internal),
        static_cast<const void*>(call.lse_external), static_cast<const void*>(call.lse_internal)}) {
    check(cudaFree(const_cast<void*>(memory)));
  }
}

template <class Launch>
double median_us(const Launch& launch) {
  static float* flush = floats(1 << 25);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 3; ++i) {
    check(cudaMemsetAsync(flush, 0, sizeof(float) << 25));
    check(cudaEventRecord(begin));
    launch();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[kRepeats / 2] * 1e3;
}

template <class Launch>
void time(const char* name, const Problem& problem, const Launch& launch) {
  const double us = median_us(launch);
  std::printf("  %-44s %9.1f us  %5.2f TB/s\n", name, us, problem.bytes / us / 1e6);
}

// What the snapshot (outputs and lses of both sides) adds: least of five, in turns.
void time_snapshot(const Problem& problem) {
  SplitCall plain = problem.call;
  plain.external = plain.internal = plain.lse_external = plain.lse_internal = nullptr;
  double with = 1e30;
  double without = 1e30;
  for (int turn = 0; turn < 5; ++turn) {
    with = std::min(with, median_us([&] { launch_split_attention(problem.call, nullptr); }));
    without = std::min(without, median_us([&] { launch_split_attention(plain, nullptr); }));
  }
  std::printf("  %-44s %9.1f us  %+.1f %%\n", "without the snapshot; what it adds", without,
              (with / without - 1.0) * 100.0);
}

template <int kDim, int kWarps, int kRowTiles, int kStages, int kStep>
void time_shape(const Problem& problem) {
  using Shape = TileShape<BFloat16, kDim, kWarps, kRowTiles, kStages, kStep>;
  if (problem.call.group * problem.call.queries > Shape::kRows) return;
  char name[80];
  int blocks = 0;
  check(cudaFuncSetAttribute(split_tiles<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Shape::kSharedBytes));
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, split_tiles<Shape>, Shape::kThreads,
                                                      Shape::kSharedBytes));
  std::snprintf(name, sizeof name, "%d warps, %d rows, %d stages, step %d, %d an SM", kWarps,
                Shape::kRows, kStages, kStep, blocks);
  time(name, problem, [&] { launch_tiles<Shape>(problem.call, nullptr); });
}

void run() {
  for (const int queries : {4, 16, 32}) {
    for (const int sequences : {1, 4}) {
      for (const int length : {4096, 32768, 131072}) {
        const Problem problem = make(sequences, length, queries, 128);
        std::printf("32/8 heads, D 128, B %d, S %d, N %d\n", queries, sequences, length);
        time("whole split_attention", problem,
             [&] { launch_split_attention(problem.call, nullptr); });
        time_snapshot(problem);
        const unsigned rows = static_cast<unsigned>(sequences * 32 * queries);
        time("its merge alone", problem, [&] {
          launch(split_merge<BFloat16, 128>, dim3{(rows + 3) / 4, 1, 1}, dim3{128, 1, 1}, 0,
                 Stream{}, problem.call);
        });
        JoinCall join;
        join.attention = problem.call;
        join.external = {problem.call.q.data, int64_t{32} * queries * 128,
                         int64_t{4} * queries * 128, 128};
        join.lse_external = {problem.call.lse_internal, int64_t{32} * queries, int64_t{4} * queries,
                             1};
        time("join of a library's pair", problem, [&] { launch_join(join, nullptr); });
        if (queries <= 16) {
          time_shape<128, 4, 1, 2, 64>(problem);
          time_shape<128, 4, 1, 3, 64>(problem);
          time_shape<128, 4, 1, 3, 32>(problem);
        }
        if (queries == 4) {
          time_shape<128, 1, 1, 2, 64>(problem);
          time_shape<128, 2, 1, 2, 64>(problem);
        }
        time_shape<128, 4, 2, 2, 32>(problem);
        time_shape<128, 4, 2, 3, 32>(problem);
        time_shape<128, 8, 1, 2, 32>(problem);
        time_shape<128, 8, 1, 3, 64>(problem);
        release(problem);
      }
    }
  }
}

}  // namespace
}  // namespace blockscope::cuda

int main() { blockscope::cuda::run(); }
