// Times split_attention against scaled_dot_product_attention in the same run and on the same
// tensors: SDPA reads one concatenated cache and yields only `out`; split_attention also yields
// both parts and their lse. Prints the least of the repeats.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "kernels/ops.h"

namespace {

struct Shape {
  const char* name;
  int64_t sequences, heads, kv_heads, dim, block_length, external_keys;
};

double least_seconds(int repeats, const std::function<void()>& work) {
  work();
  double least = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return least;
}

void report(const Shape& shape, at::ScalarType dtype, const char* what, double seconds,
            double bytes, double baseline) {
  std::printf("%-10s %-9s %-18s %9.3f ms %7.1f GB/s of K and V %6.2f x SDPA\n", shape.name,
              c10::toString(dtype), what, seconds * 1e3, bytes / seconds * 1e-9,
              seconds / baseline);
}

void bench(const Shape& shape, at::ScalarType dtype, int repeats) {
  torch::manual_seed(1);
  const auto options = at::TensorOptions().dtype(dtype);
  const auto random = [&](at::IntArrayRef sizes) { return torch::randn(sizes).to(options); };
  const int64_t s = shape.sequences;
  const int64_t n = shape.external_keys;
  const int64_t b = shape.block_length;
  const at::Tensor q = random({s, shape.heads, b, shape.dim});
  const at::Tensor k = random({s, shape.kv_heads, n + b, shape.dim});
  const at::Tensor v = random({s, shape.kv_heads, n + b, shape.dim});
  const at::Tensor k_ext = k.slice(2, 0, n);
  const at::Tensor v_ext = v.slice(2, 0, n);
  const at::Tensor k_in = k.slice(2, n);
  const at::Tensor v_in = v.slice(2, n);
  const at::Tensor ext_len = torch::full({s}, n, at::kLong);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  const double bytes = static_cast<double>(k.nbytes() + v.nbytes());
  const bool grouped = shape.heads != shape.kv_heads;

  const double sdpa = least_seconds(
      repeats, [&] { at::scaled_dot_product_attention(q, k, v, {}, 0.0, false, scale, grouped); });
  report(shape, dtype, "SDPA", sdpa, bytes, sdpa);
  blockscope::SplitAttention split;
  const double ours = least_seconds(repeats, [&] {
    split = blockscope::split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  });
  report(shape, dtype, "split_attention", ours, bytes, sdpa);
  const at::Tensor reuse = torch::ones({shape.heads}, at::kBool);
  report(shape, dtype, "reuse_attention",
         least_seconds(repeats,
                       [&] {
                         blockscope::reuse_attention(q, k_ext, v_ext, ext_len, k_in, v_in,
                                                     split.external, split.lse_external, reuse,
                                                     scale);
                       }),
         bytes, sdpa);
  report(shape, dtype, "block_topk 512",
         least_seconds(
             repeats,
             [&] { blockscope::block_topk(q, k_ext, ext_len, split.lse_external, 512, scale); }),
         bytes / 2, sdpa);
  report(shape, dtype, "token_topk 512",
         least_seconds(
             repeats,
             [&] { blockscope::token_topk(q, k_ext, ext_len, split.lse_external, 512, scale); }),
         bytes / 2, sdpa);
  const at::Tensor expected =
      at::scaled_dot_product_attention(q, k, v, {}, 0.0, false, scale, grouped);
  std::printf("%-10s %-9s largest difference of out: %.2e\n", shape.name, c10::toString(dtype),
              (expected - split.out).abs().max().item<double>());
}

/// split_attention compared with the best of SDPA's ways without a split, from a short prefix to a
/// long one: with grouped heads, and with the queries of a KV head folded into rows, which every
/// key being visible allows. The limit: the products at the rate that torch multiplies matrices.
/// Then reuse_attention in all heads, with some rows refreshed.
void bench_length(const Shape& shape, at::ScalarType dtype, int repeats) {
  torch::manual_seed(1);
  const int64_t n = shape.external_keys;
  const int64_t b = shape.block_length;
  const int64_t group = shape.heads / shape.kv_heads;
  const at::Tensor q = torch::randn({1, shape.heads, b, shape.dim}).to(dtype);
  const at::Tensor k = torch::randn({1, shape.kv_heads, n + b, shape.dim}).to(dtype);
  const at::Tensor v = torch::randn({1, shape.kv_heads, n + b, shape.dim}).to(dtype);
  const at::Tensor folded = q.view({1, shape.kv_heads, group * b, shape.dim});
  const at::Tensor ext_len = torch::full({1}, n, at::kLong);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  const at::Tensor a = torch::randn({1024, 4096}).to(dtype);
  const at::Tensor w = torch::randn({4096, 1024}).to(dtype);
  at::Tensor reference;
  const double grouped_s = least_seconds(repeats, [&] {
    reference = at::scaled_dot_product_attention(q, k, v, {}, 0.0, false, scale, group > 1);
  });
  blockscope::SplitAttention split;
  const double ours = least_seconds(repeats, [&] {
    split = blockscope::split_attention(q, k.slice(2, 0, n), v.slice(2, 0, n), ext_len,
                                        k.slice(2, n), v.slice(2, n), scale);
  });
  const double folded_s = least_seconds(repeats, [&] {
    at::scaled_dot_product_attention(folded, k, v, {}, 0.0, false, scale, false);
  });
  const double product = least_seconds(repeats, [&] { at::mm(a, w); });
  const double flops = 4.0 * static_cast<double>(shape.heads * b * shape.dim * (n + b));
  const double rate = 2.0 * 1024 * 4096 * 1024 / product;
  const double best = std::min(grouped_s, folded_s);
  std::printf(
      "%-9s N %7ld  SDPA grouped %8.2f folded %8.2f  ours %8.2f ms  %5.2f x the best  "
      "%5.2f x the limit (%.0f GFLOP/s)  error %.1e\n",
      c10::toString(dtype), static_cast<long>(n), grouped_s * 1e3, folded_s * 1e3, ours * 1e3,
      ours / best, ours * rate / flops, rate * 1e-9,
      (reference - split.out).abs().max().item<double>());
  const at::Tensor all_heads = torch::ones({shape.heads}, at::kBool);
  std::printf("%-9s N %7ld  reuse_attention, rows refreshed:", c10::toString(dtype),
              static_cast<long>(n));
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{8}, b}) {
    at::Tensor rows = torch::zeros({1, b}, at::kBool);
    rows.slice(1, 0, count).fill_(true);
    const double seconds = least_seconds(repeats, [&] {
      blockscope::reuse_attention(q, k.slice(2, 0, n), v.slice(2, 0, n), ext_len, k.slice(2, n),
                                  v.slice(2, n), split.external, split.lse_external, all_heads,
                                  scale, nullptr, rows);
    });
    std::printf(" %ld %.2f ms", static_cast<long>(count), seconds * 1e3);
  }
  std::printf("\n");
}

/// The cost of a sparse policy at a step, compared with an exact step in the same run: reading k
/// keys, and choosing them.
void bench_selection(const Shape& shape, at::ScalarType dtype, int64_t k, int64_t page,
                     int repeats) {
  torch::manual_seed(1);
  const auto random = [&](int64_t heads, int64_t tokens) {
    return torch::randn({shape.sequences, heads, tokens, shape.dim}).to(dtype);
  };
  const int64_t n = shape.external_keys;
  const at::Tensor q = random(shape.heads, shape.block_length);
  const at::Tensor k_ext = random(shape.kv_heads, n);
  const at::Tensor v_ext = random(shape.kv_heads, n);
  const at::Tensor k_in = random(shape.kv_heads, shape.block_length);
  const at::Tensor v_in = random(shape.kv_heads, shape.block_length);
  const at::Tensor ext_len = torch::full({shape.sequences}, n, at::kLong);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  blockscope::SplitAttention split;
  const double exact = least_seconds(repeats, [&] {
    split = blockscope::split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  });
  const double row = static_cast<double>(shape.kv_heads * shape.dim * k_ext.element_size());
  const auto line = [&](const std::string& what, double seconds, double rows) {
    std::printf("%-10s %-9s %-24s %9.3f ms %9.2f MB read %8.3f x exact %8.1f x faster\n",
                shape.name, c10::toString(dtype), what.c_str(), seconds * 1e3, rows * row * 1e-6,
                seconds / exact, exact / seconds);
  };
  const auto keys = static_cast<double>(n);
  line("split_attention", exact, 2.0 * keys);
  blockscope::TopK set;
  const std::string of_k = " k " + std::to_string(k);
  line("block_topk" + of_k,
       least_seconds(
           repeats,
           [&] { set = blockscope::block_topk(q, k_ext, ext_len, split.lse_external, k, scale); }),
       keys);
  line("gather_attention" + of_k,
       least_seconds(repeats,
                     [&] {
                       blockscope::gather_attention(q, k_ext, v_ext, ext_len, set.index, k_in, v_in,
                                                    scale);
                     }),
       2.0 * static_cast<double>(k));
  line("unselected_attention",
       least_seconds(
           repeats,
           [&] { blockscope::unselected_attention(q, k_ext, v_ext, ext_len, set.index, scale); }),
       2.0 * static_cast<double>(n - k));
  const std::string of_page = " p " + std::to_string(page);
  blockscope::PageBounds bounds;
  line("page_bounds" + of_page,
       least_seconds(repeats, [&] { bounds = blockscope::page_bounds(k_ext, ext_len, page); }),
       keys);
  line("page_scores" + of_page,
       least_seconds(repeats, [&] { blockscope::page_scores(q, bounds, ext_len, page); }),
       2.0 * keys / static_cast<double>(page));
}

void bench_prefill(const Shape& shape, at::ScalarType dtype, int repeats) {
  torch::manual_seed(1);
  const int64_t n = shape.external_keys;
  const auto random = [&](int64_t heads) {
    return torch::randn({shape.sequences, heads, n, shape.dim}).to(dtype);
  };
  const at::Tensor q = random(shape.heads);
  const at::Tensor k = random(shape.kv_heads);
  const at::Tensor v = random(shape.kv_heads);
  const at::Tensor len = torch::full({shape.sequences}, n, at::kLong);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  const double bytes = static_cast<double>(k.nbytes() + v.nbytes());
  const double sdpa = least_seconds(
      repeats, [&] { at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, scale, true); });
  report(shape, dtype, "SDPA causal", sdpa, bytes, sdpa);
  report(shape, dtype, "prefill causal",
         least_seconds(repeats, [&] { blockscope::prefill_attention(q, k, v, len, 1, scale); }),
         bytes, sdpa);
  report(
      shape, dtype, "prefill block",
      least_seconds(
          repeats, [&] { blockscope::prefill_attention(q, k, v, len, shape.block_length, scale); }),
      bytes, sdpa);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = at::get_num_threads();
  int repeats = 20;
  CLI::App app("Times the attention operators against scaled_dot_product_attention");
  app.add_option("--threads", threads, "Threads of the operators")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--repeats", repeats, "Calls of each operator; the least time is printed")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  bool selection = false;
  app.add_flag("--selection", selection,
               "Time the operators of sparse policies instead, 32 / 8 heads of 128, bf16");
  std::vector<int64_t> lengths;
  app.add_option(
         "--lengths", lengths,
         "Time split_attention and refreshed rows over so many keys, 32 / 8 heads of 128, B 32")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  const at::InferenceMode no_grad;
  std::printf("%s, %d threads, least of %d\n", blockscope::instruction_set().c_str(), threads,
              repeats);
  if (selection) {
    for (const int64_t keys : {8192, 32768}) {
      const std::string name = std::to_string(keys / 1024) + "k keys";
      bench_selection({name.c_str(), 1, 32, 8, 128, 32, keys}, at::kBFloat16, 1024, 16, repeats);
    }
    return 0;
  }
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (const int64_t keys : lengths) {
      bench_length({"SDAR-8B", 1, 32, 8, 128, 32, keys}, dtype, repeats);
    }
  }
  if (!lengths.empty()) return 0;
  const Shape sdar = {"SDAR-8B", 1, 32, 8, 128, 32, 4096};
  const Shape small = {"needle", 1, 6, 2, 48, 16, 1024};
  const Shape batch = {"needle x8", 8, 6, 2, 48, 16, 1024};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Shape& shape : {sdar, small, batch}) bench(shape, dtype, repeats);
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    bench_prefill({"SDAR-8B", 1, 32, 8, 128, 32, 1024}, dtype, std::max(1, repeats / 4));
    bench_prefill(small, dtype, repeats);
  }
  return 0;
}
