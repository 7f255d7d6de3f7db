#include "probe/study/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/line_chart.h"
#include "decode_record/base/error.h"
#include "probe/checkpoint/rope.h"
#include "probe/study/measured_reuse.h"
#include "probe/study/predicted_time.h"

namespace blockscope {
namespace {

constexpr double kMilli = 1e3;
constexpr double kGiga = 1e9;
constexpr double kSlopeTokens = 1e5;  // Fig. 3 has a tick at every 100k tokens

struct GivenShape {
  const char* name;
  const char* config;  // config.json
};
/// Published shapes, for a user without a checkpoint.
constexpr GivenShape kGivenShapes[] = {
    {"trado-8b",
     R"({"architectures": ["SDARForCausalLM"], "model_type": "sdar", "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
  "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "rope_scaling": null, "attention_bias": false, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "mask_token_id": 151669, "block_size": 4, "eos_token_id": 151643,
  "use_sliding_window": false})"}};

const GivenShape* given_shape(const std::string& name) {
  const auto* const found = std::ranges::find(kGivenShapes, name, &GivenShape::name);
  return found == std::end(kGivenShapes) ? nullptr : found;
}

/// A method and its passes in a block.
struct Method {
  std::string name;
  double reading = 0.0;  // steps of a block that read the whole prefix
  PassWork reading_pass, other_pass, commit;
};

/// Seconds of a block.
struct BlockTime {
  PassTime steps;  // the sum of all denoising steps
  double commit = 0.0;
  double total() const { return steps.total() + commit; }
};

class Prediction {
 public:
  Prediction(const StudyOptions& options, const PredictionSetting& setting)
      : options_(options),
        setting_(setting),
        device_(device_numbers(options.predict)),
        block_length_(require_block_length(setting.config)) {
    check_model();
    check_device();
    if (!options.trace.empty()) {
      reuse_ = measured_reuse(options.trace, block_length_);
      steps_ = {reuse_->steps};
    } else {
      for (const int64_t steps : options.steps) {
        if (steps > block_length_) {
          throw UsageError(fmt::format(
              "study time: --steps: expected at most the block length {}, got {}. HINT: "
              "--block-length makes it longer",
              block_length_, steps));
        }
        steps_.push_back(static_cast<double>(steps));
      }
      if (steps_.empty()) steps_ = {static_cast<double>(block_length_)};
    }
    for (const double steps : steps_) {
      const double most = (steps - 1.0) / steps;
      if (options.reuse_share.value_or(0.0) <= most) continue;
      throw UsageError(
          fmt::format("--reuse-share: expected at most {:.4g} at {} steps a block, got {}. HINT: a "
                      "block's first "
                      "step always reads",
                      most, steps, *options.reuse_share));
    }
    for (const int64_t total : options.totals) {
      totals_.push_back(static_cast<double>(total));
    }
    if (totals_.empty()) {
      for (const int64_t context : options.prompts.contexts) {
        totals_.push_back(static_cast<double>(context * options.batch_size));
      }
    }
    std::ranges::sort(totals_);
    totals_.erase(std::unique(totals_.begin(), totals_.end()), totals_.end());
    const int64_t positions = largest_position_count(setting.config);
    const double most = context_of(totals_.back()) + static_cast<double>(block_length_);
    if (most > static_cast<double>(positions)) {
      throw UsageError(fmt::format(
          "study time: {}: expected at most the {} positions of this model for each of {} "
          "sequences, got {:.0f}. HINT: --batch-size divides the total by more sequences",
          options.totals.empty() ? "--contexts" : "--total-contexts", positions, options.batch_size,
          most));
    }
  }

  StudyReport report() const;

 private:
  void check_model() const;
  void check_device() const;
  double context_of(double total) const { return total / static_cast<double>(options_.batch_size); }
  PredictedRun run(double total) const {
    return {setting_.config, device_,           setting_.dtype, options_.batch_size,
            block_length_,   context_of(total), options_.tp};
  }
  std::vector<Method> methods(double context, double steps) const;
  BlockTime block_time(const Method& method, double total, double steps) const;
  Figure figure(double steps) const;

  const StudyOptions& options_;
  const PredictionSetting& setting_;
  DeviceNumbers device_;
  int64_t block_length_;
  std::optional<MeasuredReuse> reuse_;
  std::vector<double> steps_, totals_;
};

void Prediction::check_model() const {
  if (!setting_.config.attention_bidirectional && !setting_.config.draft) return;
  throw UsageError(fmt::format(
      "--predict: {}: expected a model that decodes block by block, got {}. HINT: a denoising step "
      "must read a prefix of keys and values that no longer change",
      setting_.model, setting_.config.draft ? "a draft" : "a bidirectional one"));
}

void Prediction::check_device() const {
  if (!device_.flops.contains(setting_.dtype)) {
    throw UsageError(fmt::format(
        "--predict: {}: expected a rate of products in {}, got none. HINT: add it to \"flops\", or "
        "--dtype",
        options_.predict, setting_.dtype));
  }
  if (options_.tp == 1) return;
  if (device_.link_bandwidth == 0.0) {
    throw UsageError(fmt::format(
        "--tp: {}: expected link_bandwidth and link_seconds, got none. HINT: add them, or leave "
        "--tp out",
        options_.predict));
  }
  if (setting_.config.num_heads % options_.tp != 0 ||
      setting_.config.num_kv_heads % options_.tp != 0) {
    throw UsageError(fmt::format("--tp: expected a divisor of {} heads and {} KV heads, got {}",
                                 setting_.config.num_heads, setting_.config.num_kv_heads,
                                 options_.tp));
  }
}

std::vector<Method> Prediction::methods(double context, double steps) const {
  const auto block = static_cast<double>(block_length_);
  PassWork exact{.read = context,
                 .read_exact_layers = context,
                 .head_rows = block * (steps + 1.0) / (2.0 * steps)};
  PassWork commit = exact;
  commit.head_rows = 0.0;
  std::vector<Method> methods{{"exact", steps, exact, exact, commit}};

  const auto add_flashblock = [&](const std::string& name, double reading) {
    Method method{"flashblock " + name, reading, exact, exact, commit};
    method.reading_pass.pair = method.other_pass.pair = true;
    method.other_pass.read = method.other_pass.read_exact_layers = 0.0;
    methods.push_back(method);
  };
  if (reuse_) {
    add_flashblock("trace", steps * (1.0 - reuse_->share));
  } else if (options_.reuse_share) {
    add_flashblock(fmt::format("share={}", *options_.reuse_share),
                   steps * (1.0 - *options_.reuse_share));
  } else {
    for (const int64_t tau : options_.taus) {
      add_flashblock(fmt::format("tau={}", tau),
                     static_cast<double>(
                         predicted_reading_steps(block_length_, static_cast<int64_t>(steps), tau)));
    }
  }
  for (const bool residual : {false, true}) {
    const auto add_mage = [&](const std::string& name, double k) {
      Method method{(residual ? "mage+flashblock " : "mage ") + name, 1.0, exact, exact, commit};
      if (k < context) {
        method.reading_pass.exact_layers = method.other_pass.exact_layers = options_.exact_layers;
        method.reading_pass.scored = context;
        method.other_pass.read = k;
        if (residual) method.reading_pass.residual = context - k;
        method.reading_pass.pair = method.other_pass.pair = residual;
      }
      methods.push_back(method);
    };
    for (const int64_t k : options_.set_sizes) {
      add_mage(fmt::format("k={}", k), static_cast<double>(k));
    }
    for (const double density : options_.densities) {
      add_mage(fmt::format("density={}", density), density * context);
    }
  }
  return methods;
}

BlockTime Prediction::block_time(const Method& method, double total, double steps) const {
  const PredictedRun work = run(total);
  const PassTime reading = predicted_pass(work, method.reading_pass);
  const PassTime other = predicted_pass(work, method.other_pass);
  const auto sum = [&](double PassTime::*part) {
    return method.reading * reading.*part + (steps - method.reading) * other.*part;
  };
  return {{sum(&PassTime::products), sum(&PassTime::attention), sum(&PassTime::head),
           sum(&PassTime::rest)},
          predicted_pass(work, method.commit).total()};
}

StudyReport Prediction::report() const {
  StudyReport report;
  report.tables = {
      {"time-predicted",
       fmt::format("A denoising step and a block on paper: {}", device_.device),
       fmt::format(
           "Predicted, not measured: max(bytes / bandwidth, FLOP / rate) for every kernel, and its "
           "launch. {} of B {}, {} on {}. The context is the total of the batch. "
           "\"reads\": share of steps that read the whole prefix. \"memory\": of each device, "
           "which "
           "has {:.0f} GB. As FlashBlock, Fig. 3 and Table 1.",
           counted(options_.batch_size, "sequence", "sequences"), block_length_, setting_.dtype,
           counted(options_.tp, "device", "devices"), device_.memory_bytes / kGiga),
       {}}};
  ReportTable growth{
      "time-predicted-growth",
      "Growth of a step with the context, milliseconds for 100,000 tokens of the batch",
      "From the smallest to the largest context. \"of exact\": the share of exact's growth.",
      {}};
  for (const double steps : steps_) {
    std::vector<double> first, last;
    for (const double total : totals_) {
      const double memory = predicted_memory(run(total));
      const bool fits = memory <= device_.memory_bytes;
      const double exact =
          block_time(methods(context_of(total), steps).front(), total, steps).total();
      for (const Method& method : methods(context_of(total), steps)) {
        const BlockTime time = block_time(method, total, steps);
        const double step_ms = kMilli * time.steps.total() / steps;
        if (total == totals_.front()) first.push_back(step_ms);
        if (total == totals_.back()) last.push_back(step_ms);
        const double tokens = static_cast<double>(options_.batch_size * block_length_);
        const std::vector<TableCell> cells{
            {"context", "total_context", total, decimals<0>},
            {"", "context", context_of(total)},
            {"steps", "steps", steps, steps == std::floor(steps) ? decimals<0> : decimals<2>},
            {"method", "method", method.name},
            {"reads", "reads", method.reading / steps},
            {"ms a step", "step_ms", step_ms, decimals<2>},
            {"", "products_ms", kMilli * time.steps.products / steps},
            {"attention", "attention_ms", kMilli * time.steps.attention / steps},
            {"", "head_ms", kMilli * time.steps.head / steps},
            {"", "rest_ms", kMilli * time.steps.rest / steps},
            {"", "commit_ms", kMilli * time.commit},
            {"ms a block", "block_ms", kMilli * time.total(), decimals<1>},
            {"tokens/s", "tokens_per_second", tokens / time.total(), decimals<1>},
            {"speedup", "speedup", exact / time.total()},
            {"memory, GB", "memory_bytes", memory,
             [](double bytes) { return fixed(bytes / kGiga, 1); }},
            {"fits", "fits", fits ? std::string("yes") : std::string("NO")}};
        report.tables[0].table.add_text(cells);
        report.csv.add_csv(cells, [](double value) { return fmt::format("{:.9g}", value); });
      }
      if (!fits) {
        report.notes.push_back(fmt::format(
            "{:.0f} tokens do not fit: {} needs {:.1f} GB on each device, which has {:.0f} GB. The "
            "row is what a device of this speed with more memory would take.",
            total, steps_.size() > 1 ? fmt::format("with {} steps the run", steps) : "the run",
            memory / kGiga, device_.memory_bytes / kGiga));
      }
    }
    if (totals_.size() < 2) continue;
    const std::vector<Method> names = methods(context_of(totals_.back()), steps);
    const double scale = kSlopeTokens / (totals_.back() - totals_.front());
    for (size_t m = 0; m < names.size(); ++m) {
      growth.table.add_text({{"steps", "", fixed(steps, steps == std::floor(steps) ? 0 : 2)},
                             {"method", "", names[m].name},
                             {"ms", "", scale * (last[m] - first[m])},
                             {"of exact", "", (last[m] - first[m]) / (last[0] - first[0])}});
    }
  }
  if (totals_.size() > 1) {
    report.tables.push_back(growth);
    report.figures = {figure(steps_.front())};
  }
  return report;
}

Figure Prediction::figure(double steps) const {
  LineChart chart{.x_label = "total context of the batch (1,000 tokens)",
                  .y_label = "denoising step (ms), predicted"};
  for (const Method& method : methods(context_of(totals_.back()), steps)) {
    chart.curves.push_back({.title = method.name, .x = {}, .y = {}});
  }
  double fitting = 0.0;
  for (const double total : totals_) {
    if (predicted_memory(run(total)) <= device_.memory_bytes) fitting = total;
    const std::vector<Method> all = methods(context_of(total), steps);
    for (size_t m = 0; m < all.size(); ++m) {
      chart.curves[m].x.push_back(total / kMilli);
      chart.curves[m].y.push_back(kMilli * block_time(all[m], total, steps).steps.total() / steps);
      chart.y_upper = std::max(chart.y_upper, chart.curves[m].y.back());
    }
  }
  chart.y_upper = round_up_to(chart.y_upper);
  look_like_methods(chart.curves);
  Figure figure;
  figure.name = "time-predicted";
  figure.title = fmt::format("A denoising step on paper: {}", device_.device);
  figure.caption =
      fmt::format("{} sequences, B {}, {} device(s); {}. As FlashBlock, Fig. 3.",
                  options_.batch_size, block_length_, options_.tp,
                  fitting == totals_.back()
                      ? std::string("all contexts fit the memory")
                      : fmt::format("contexts above {:.0f} do not fit the memory", fitting));
  draw_chart(chart, figure);
  figure.width = 900;
  return figure;
}

}  // namespace

const StudyInfo& prediction_info() {
  static const StudyInfo info{
      "time-predicted",
      "Time of a step and a block by method and context, on paper",
      "FlashBlock, Fig. 3 and Table 1",
      {"--predict", "--tp", "--total-contexts", "--trace", "--reuse-share", "--k", "--densities",
       "--taus", "--contexts", "--steps", "--exact-layers"},
      [](StudyOptions& options) {
        if (options.taus.empty()) options.taus = {2, 3, 4};
        if (options.set_sizes.empty() && options.densities.empty()) options.set_sizes = {1024};
        if (options.totals.empty() && options.prompts.contexts.empty()) {
          for (int64_t total = 100'000; total <= 800'000; total += 100'000) {
            options.totals.push_back(total);
          }
        }
      },
      nullptr};
  return info;
}

std::string prediction_folder(const ModelFlags& model, const Environment& environment) {
  if (given_shape(model.model) != nullptr) {
    refuse_revision(model, "a given shape");
    return "";
  }
  return model_source(model, environment).folder;
}

PredictionSetting prediction_setting(const ModelFlags& model, const Environment& environment) {
  PredictionSetting setting;
  if (const GivenShape* shape = given_shape(model.model)) {
    setting.config =
        parse_model_config({.folder = shape->name, .config = shape->config}, model.overrides);
  } else {
    setting.config = load_model_config(prediction_folder(model, environment), model.overrides);
  }
  setting.model = model.model;
  setting.dtype = model.dtype == "auto" ? setting.config.dtype : model.dtype;
  if (setting.dtype.empty()) setting.dtype = "float32";
  const std::vector<std::string> known{"float32", "bfloat16", "float16"};
  if (std::ranges::find(known, setting.dtype) == known.end()) {
    throw UsageError(fmt::format("--dtype: expected auto, float32, bfloat16 or float16, got '{}'",
                                 setting.dtype));
  }
  return setting;
}

StudyReport predicted_report(const StudyOptions& options, const PredictionSetting& setting) {
  return Prediction(options, setting).report();
}

}  // namespace blockscope
