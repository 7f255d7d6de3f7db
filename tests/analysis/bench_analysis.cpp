// Speed of the analysis over a large trace, both sides in one run:
//   bench_analysis make TRACE --gib 2 [--random]     writes a trace of level outputs of an 8B shape
//   bench_analysis run TRACE [--repeat 3] [--threads 2] [--cold] [--python PYTHON]
// `run` prints GB/s of A_out for: a raw sequential read (pread, 1 MiB) of as many bytes of the same
// file, adjacent-step cosines, token x token matrices, and scripts/bench/analysis_torch.py's; then
// the ratios of the medians. The sides of a comparison run in turns. --cold drops the file from the
// page cache before each raw read and each cosine.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "analysis/math/cosine.h"
#include "analysis/metrics/pair_cosines.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/write/trace_writer.h"

namespace blockscope {
namespace {

std::size_t u(std::int64_t value) { return static_cast<std::size_t>(value); }

TraceMeta shape_8b() {
  TraceMeta meta;
  meta.num_layers = 36;
  meta.num_heads = 32;
  meta.num_kv_heads = 8;
  meta.head_dim = 128;
  meta.hidden_size = 4096;
  meta.vocab_size = 1000;
  meta.mask_token_id = 999;
  meta.softmax_scale = 1.0 / std::sqrt(128.0);
  meta.block_length = 32;
  meta.level = RecordLevel::outputs;
  meta.record_everything();
  meta.run_json = R"({"version":"test","policy":"exact"})";
  return meta;
}

/// bfloat16 normals; each step changes the low bits (correlated) or everything (random).
class StepWords {
 public:
  StepWords(std::size_t count, bool random) : words_(count), is_random_(random) {
    std::normal_distribution<float> normal;
    pool_.resize(std::size_t{1} << 20U);
    for (std::uint16_t& word : pool_) {
      word = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random_)) >> 16U);
    }
    refill();
  }

  Buffer next() {
    if (is_random_) {
      refill();
    } else {
      const std::uint64_t key = random_();
      for (std::size_t i = 0; i < words_.size(); ++i) {
        words_[i] ^= static_cast<std::uint16_t>((key >> (i % 48)) & 0xFU);
      }
    }
    return make_buffer(std::vector<std::uint16_t>(words_));
  }

 private:
  void refill() {
    for (std::size_t i = 0; i < words_.size();) {
      const std::size_t from = random_() % pool_.size();
      const std::size_t count =
          std::min({pool_.size() - from, words_.size() - i, std::size_t{4096}});
      std::copy_n(pool_.begin() + static_cast<std::ptrdiff_t>(from), count,
                  words_.begin() + static_cast<std::ptrdiff_t>(i));
      i += count;
    }
  }

  std::mt19937_64 random_{7};
  std::vector<std::uint16_t> pool_, words_;
  bool is_random_;
};

void make(const std::string& path, double gib, bool random) {
  const TraceMeta meta = shape_8b();
  TraceWriter writer(path, meta, TraceWriterOptions{.force = true});
  const std::size_t elements = row_bytes(spec_of(Field::attention_external), meta) / 2;
  std::vector<StepWords> words(3, StepWords(elements, random));
  const std::vector<Field> fields{Field::attention_external, Field::attention_internal,
                                  Field::query};
  const std::int64_t block = meta.block_length;
  for (std::int64_t b = 0; static_cast<double>(writer.bytes_appended()) < gib * (1U << 30U); ++b) {
    SequenceStart start;
    start.prompt.assign(4096, 1);
    start.gen_length = block;
    const std::int64_t sequence = writer.begin_sequence(std::move(start));
    for (std::int64_t s = 1; s <= block; ++s) {
      if (static_cast<double>(writer.bytes_appended()) >= gib * (1U << 30U)) break;
      TraceRow row;
      row.sequence = sequence;
      row.pass = b * block + s;
      row.block = 0;
      row.block_start = 4096;
      row.step = s;
      row.context_length = 4096;
      row.changed = s > 1 ? 1 : 0;
      row.masks_left = block - s + 1;
      row.recorded = true;
      for (std::size_t f = 0; f < fields.size(); ++f) {
        row.arrays.push_back({fields[f], kAllLayers, words[f].next()});
      }
      writer.append_row(std::move(row));
    }
    writer.end_sequence(sequence, {FinishReason::length, "", std::nullopt});
  }
  writer.finish();
}

double seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Adjacent-step cosines of A_out alone.
class ExternalCosines final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader&, const TraceShape& shape) override {
    heads_ = shape.heads.size();
    pairs_ = PairCosines(shape.layers.size(), heads_);
    return {{Field::attention_external}, true, false, {}};
  }
  void add(const StepView& step) override {
    if (step.previous() != nullptr) pairs_.add(step, Field::attention_external, heads_);
  }
  MetricResult finish() override {
    MetricResult result;
    result.arrays.push_back(pairs_.grid().means("cosine", "", "", axis(36), axis(32)));
    return result;
  }
  static ResultAxis axis(std::size_t n) { return {"", std::vector<double>(n), {}}; }

 private:
  std::size_t heads_ = 0;
  PairCosines pairs_;
};

/// Token x token matrices of A_out, heads concatenated.
class ExternalMatrices final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader&, const TraceShape& shape) override {
    heads_ = shape.heads.size();
    sums_.assign(shape.layers.size(), 0.0);
    return {{Field::attention_external}, true, false, {}};
  }
  void add(const StepView& step) override {
    if (step.previous() == nullptr) return;
    thread_local std::vector<float> matrix;
    cross_cosines(step.previous(Field::attention_external), step.now(Field::attention_external),
                  heads_, step.previous_valid(), step.valid(), matrix);
    for (const float value : matrix) sums_.at(step.layer()) += double{value};
  }
  MetricResult finish() override {
    MetricResult result;
    result.arrays.push_back({"sum", "", "", {}, {0.0}, {}});
    for (const double sum : sums_) result.arrays[0].values[0] += sum;
    return result;
  }

 private:
  std::size_t heads_ = 0;
  std::vector<double> sums_;
};

template <typename Metric>
MetricResult pass(const std::string& path, std::size_t threads) {
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(std::make_unique<Metric>());
  PassOptions options;
  options.threads = threads;
  return run_pass(TraceGroup({path}), metrics, options).front();
}

class Bench {
 public:
  Bench(std::string path, int repeat, std::size_t threads)
      : path_(std::move(path)), repeat_(repeat), threads_(threads) {
    const TraceReader trace(path_);
    std::int64_t rows = 0;
    for (const BlockSteps& block : list_blocks(trace)) {
      rows += static_cast<std::int64_t>(block.steps.size());
    }
    bytes_ = u(rows) * row_bytes(spec_of(Field::attention_external), trace.info().meta);
    file_bytes_ = u(trace.info().file_bytes);
    fmt::print("{}: {:.2f} GB, A_out {:.2f} GB\n", path_, 1e-9 * static_cast<double>(file_bytes_),
               1e-9 * static_cast<double>(bytes_));
  }

  void run(const std::string& python) {
    raw(1);  // into the page cache
    MetricResult result;
    const auto raw_read = [this](std::size_t threads) {
      return Case{fmt::format("raw read, warm, {}", count(threads)), [=, this] { raw(threads); }};
    };
    const auto cosines = [&](std::size_t threads) {
      return Case{fmt::format("cosine of A_out, warm, {}", count(threads)),
                  [&, threads] { result = pass<ExternalCosines>(path_, threads); }};
    };
    const std::vector<double> rates =
        report({raw_read(1), cosines(1), raw_read(threads_), cosines(threads_)});
    fmt::print("  mean cosine {:.6f}\n", mean_over_others(result.arrays[0], {}).values[0]);
    print_ratio("the raw read, by 1 thread both", rates[1], rates[0]);
    print_ratio(fmt::format("the raw read, by {} both", count(threads_)), rates[3], rates[2]);
    const std::vector<double> matrix =
        report({{fmt::format("token x token of A_out, warm, {}", count(threads_)),
                 [&] { result = pass<ExternalMatrices>(path_, threads_); }}});
    fmt::print("  sum of the matrices {:.3f}\n", result.arrays[0].values[0]);
    if (!python.empty()) run_python(python, rates[3], matrix[0]);
  }

  void run_cold() {
    const std::vector<double> rates =
        report({{"raw read, cold, 1 thread", [this] { raw(1); }},
                {fmt::format("cosine of A_out, cold, {}", count(threads_)),
                 [this] { pass<ExternalCosines>(path_, threads_); }}},
               true);
    print_ratio("the raw read", rates[1], rates[0]);
  }

  static void print_memory() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    fmt::print("  largest resident set {:.0f} MiB\n",
               static_cast<double>(usage.ru_maxrss) / 1024.0);
  }

 private:
  void run_python(const std::string& python, double cosine, double matrix) const {
    const std::string command =
        fmt::format("'{}' '{}/scripts/bench/analysis_torch.py' '{}' --repeat {} --threads {}",
                    python, BLOCKSCOPE_SOURCE_DIR, path_, repeat_, threads_);
    std::string text;
    FILE* output = ::popen(command.c_str(), "r");
    for (int c = 0; output != nullptr && (c = std::fgetc(output)) != EOF;) {
      text.push_back(static_cast<char>(c));
    }
    if (output == nullptr || ::pclose(output) != 0) {
      fmt::print("  {} failed\n", command);
      return;
    }
    const auto other = nlohmann::json::parse(text);
    for (const char* name : {"torch", "numpy"}) {
      for (const auto& [what, ours] : {std::pair{"cosine", cosine}, {"matrix", matrix}}) {
        const double theirs = other.at(fmt::format("{}_{}", name, what)).at("gb_per_s");
        fmt::print("{:42} {:7.3f} GB/s\n", fmt::format("{} with h5py and {}", what, name), theirs);
        print_ratio(name, ours, theirs);
      }
    }
  }

  struct Case {
    std::string what;
    std::function<void()> run;
  };

  static std::string count(std::size_t threads) {
    return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
  }

  static void print_ratio(const std::string& what, double ours, double other) {
    fmt::print("  ours is {:.2f} times {}\n", ours / other, what);
  }

  /// As many bytes as A_out has, from the beginning of the file.
  void raw(std::size_t threads) const {
    const std::size_t share = std::min(bytes_, file_bytes_) / threads;
    std::vector<std::thread> readers;
    for (std::size_t t = 0; t < threads; ++t) {
      readers.emplace_back([this, share, t] {
        const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
        std::vector<char> buffer(std::size_t{1} << 20U);
        for (std::size_t at = t * share; at < (t + 1) * share;) {
          const std::size_t want = std::min(buffer.size(), (t + 1) * share - at);
          const ssize_t got = ::pread(fd, buffer.data(), want, static_cast<off_t>(at));
          if (got <= 0) std::abort();
          at += static_cast<std::size_t>(got);
        }
        ::close(fd);
      });
    }
    for (std::thread& reader : readers) reader.join();
  }

  void drop_from_cache() const {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }

  /// In turns. Returns the medians, GB/s.
  std::vector<double> report(const std::vector<Case>& cases, bool cold = false) const {
    std::vector<std::vector<double>> times(cases.size());
    for (int i = 0; i < repeat_; ++i) {
      for (std::size_t c = 0; c < cases.size(); ++c) {
        if (cold) drop_from_cache();
        times[c].push_back(seconds(cases[c].run));
      }
    }
    const double gb = 1e-9 * static_cast<double>(bytes_);
    std::vector<double> rates;
    for (std::size_t c = 0; c < cases.size(); ++c) {
      std::ranges::sort(times[c]);
      rates.push_back(gb / times[c][times[c].size() / 2]);
      fmt::print("{:42} {:7.3f} GB/s  (best {:.3f}, worst {:.3f})\n", cases[c].what, rates.back(),
                 gb / times[c].front(), gb / times[c].back());
    }
    std::fflush(stdout);
    return rates;
  }

  std::string path_;
  int repeat_;
  std::size_t threads_;
  std::size_t bytes_ = 0, file_bytes_ = 0;
};

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  std::string path;
  std::string python;
  double gib = 2.0;
  int repeat = 3;
  std::size_t threads = std::thread::hardware_concurrency();
  bool random = false;
  bool cold = false;
  CLI::App app("Speed of the analysis over a large trace.");
  app.require_subcommand(1);
  CLI::App* make = app.add_subcommand("make", "write a trace");
  make->add_option("trace", path)->required();
  make->add_option("--gib", gib);
  make->add_flag("--random", random, "steps without correlation");
  CLI::App* run = app.add_subcommand("run", "measure");
  run->add_option("trace", path)->required();
  run->add_option("--repeat", repeat)->check(CLI::PositiveNumber);
  run->add_option("--threads", threads)->check(CLI::PositiveNumber);
  run->add_flag("--cold", cold, "also from disk");
  run->add_option("--python", python, "with torch, h5py and numpy; empty: left out");
  CLI11_PARSE(app, argc, argv);
  try {
    if (make->parsed()) {
      blockscope::make(path, gib, random);
      return 0;
    }
    blockscope::Bench bench(path, repeat, threads);
    bench.run(python);
    if (cold) bench.run_cold();
    blockscope::Bench::print_memory();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
