#include "probe/train/reuse_trainer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "probe/checkpoint/family_table.h"
#include "probe/train/autocast_guard.h"

namespace blockscope {
namespace {

constexpr const char* kReuseStateFormat = "blockscope-train-reuse-2";
constexpr std::int64_t kTaskProbes = 32;  // about this many of a generated document
// Streams of TaskRandom that no other stage reads.
constexpr std::uint64_t kStream = (1U << 21) + (1U << 20);

std::vector<ExpectedTensor> parameters_of(const std::vector<AdapterTarget>& targets,
                                          std::int64_t rank) {
  std::vector<ExpectedTensor> tensors;
  for (const AdapterTarget& target : targets) {
    tensors.push_back({target.a(), {rank, target.in}});
    tensors.push_back({target.b(), {target.out, rank}});
  }
  return tensors;
}

/// As in training, with mostly chains: their second lookup needs the first one's answer, so a pass
/// that reuses loses them first.
DocumentSpec reuse_spec(int level, TaskRandom& random) {
  DocumentSpec spec = training_spec(level, random);
  if (spec.chains == 0) return spec;
  spec.chains = level < 2 ? 3 : 10;
  for (std::size_t& count : spec.questions) count = std::min<std::size_t>(count, 1);
  spec.questions[static_cast<std::size_t>(Task::kChain)] = spec.chains;
  return spec;
}

ReuseReport report_of(const ReuseLoss& loss, const ReuseObjective& objective,
                      const ReuseBatch& batch) {
  ReuseReport report;
  report.probes = batch.tokens.numel() / batch.block_length;
  report.tokens = batch.prefix.tokens.numel() + batch.tokens.numel();
  report.positions = loss.positions;
  report.reuse_agrees = loss.reuse_agrees;
  report.dense_agrees = loss.dense_agrees;
  report.loss = loss.mean_loss(objective);
  report.reuse_kl = loss.reuse_kl;
  report.dense_kl = loss.dense_kl;
  return report;
}

}  // namespace

void ReuseReport::add(const ReuseReport& other) {
  const auto all = static_cast<double>(std::max<std::int64_t>(positions + other.positions, 1));
  const double own = static_cast<double>(positions) / all;
  const double share = static_cast<double>(other.positions) / all;
  const auto mix = [&](double& mean, double value) { mean = mean * own + value * share; };
  mix(loss, other.loss);
  mix(reuse_kl, other.reuse_kl);
  mix(dense_kl, other.dense_kl);
  positions += other.positions;
  reuse_agrees += other.reuse_agrees;
  dense_agrees += other.dense_agrees;
  probes += other.probes;
  tokens += other.tokens;
}

void check_reuse_base(const Checkpoint& base) {
  if (!family_of(base.config()).training.reuse) {
    throw CheckpointError(fmt::format(
        "{}: expected a checkpoint of SDAR's family, which decodes block by block, got model_type "
        "{}. HINT: --init models/needle",
        base.folder().string(), base.config().model_type));
  }
  require_mask_token_id(base.config());
}

ReuseTrainer::ReuseTrainer(const Checkpoint& base, ReuseTrainOptions options, ReuseSource source)
    : options_(std::move(options)),
      source_(std::move(source)),
      base_digest_(base.digest()),
      targets_(adapter_targets(base.config(), options_.lora.modules)),
      parameters_(parameters_of(targets_, options_.lora.rank), at::Device(options_.device)),
      teacher_(BlockDiffusionModel::load(base, options_.bfloat16 ? at::kBFloat16 : at::kFloat,
                                         at::Device(options_.device))),
      student_(teacher_.with_low_rank(parts(options_.lora.dropout))),
      evaluated_(teacher_.with_low_rank(parts(0.0))) {
  options_.objective.mask_token = require_mask_token_id(base.config());
  const at::NoGradGuard no_grad;
  const at::Generator generator = at::detail::createCPUGenerator(options_.seed);
  for (const AdapterTarget& target : targets_) {
    const at::Tensor& a = parameters_.leaves().at(target.a());
    const double bound = 1.0 / std::sqrt(static_cast<double>(target.in));
    a.copy_(at::empty(a.sizes()).uniform_(-bound, bound, generator));
  }
}

std::map<std::string, LowRank> ReuseTrainer::parts(double dropout) const {
  std::map<std::string, LowRank> parts;
  for (const AdapterTarget& target : targets_) {
    parts[target.weight] = {parameters_.leaves().at(target.a()),
                            parameters_.leaves().at(target.b()), options_.lora.scale(), dropout};
  }
  return parts;
}

std::int64_t ReuseTrainer::parameters() const {
  std::int64_t count = 0;
  for (const auto& [name, leaf] : parameters_.leaves()) count += leaf.numel();
  return count;
}

double ReuseTrainer::learning_rate() const {
  return scheduled_rate(options_.learning_rate, step_, options_.steps, options_.warmup,
                        options_.decay_fraction);
}

ReuseBatch ReuseTrainer::make_batch(std::int64_t context, std::int64_t documents,
                                    const ReuseBatchSpec& spec, std::size_t first_held_out,
                                    TaskRandom& random, bool held_out) const {
  if (const auto* tokens = std::get_if<TaskTokens>(&source_)) {
    const int level = static_cast<int>(std::lround(std::log2(static_cast<double>(context / 64))));
    std::vector<TaskDocument> made;
    for (std::int64_t i = 0; i < documents; ++i) {
      made.push_back(make_document(reuse_spec(level, random), random));
    }
    return make_reuse_batch(made, *tokens, spec, random);
  }
  const auto& source = std::get<TextSource>(source_);
  const std::size_t trained = source.texts.size() - source.held_out;
  std::vector<TokenIds> texts;
  for (std::int64_t i = 0; i < documents; ++i) {
    const TokenIds& text =
        source.texts[held_out ? trained + first_held_out + static_cast<std::size_t>(i)
                              : random.below(trained)];
    const auto most = static_cast<std::size_t>(context);
    const auto least = static_cast<std::size_t>(2 * spec.block_length);  // a prefix and a probe
    const std::size_t length = std::min(
        text.size(), std::max(least, held_out ? most : random.between(most / 2 + 1, most)));
    texts.emplace_back(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
  }
  const std::int64_t mask = options_.objective.mask_token;
  return make_reuse_batch(texts, {mask, mask == 0 ? 1 : 0}, spec, random);
}

std::int64_t ReuseTrainer::probe_rows(std::int64_t context) const {
  const std::int64_t block = options_.batch.block_length;
  const bool tasks = std::holds_alternative<TaskTokens>(source_);
  return block * std::min(options_.batch.probes, tasks ? kTaskProbes : context / block);
}

ReuseReport ReuseTrainer::step() {
  TaskRandom random(TaskSplit::kTrain, (options_.seed & 0xffff) + kStream,
                    static_cast<std::uint64_t>(step_));
  const auto level =
      static_cast<std::int64_t>(random.between(static_cast<std::size_t>(options_.first_level),
                                               static_cast<std::size_t>(options_.last_level)));
  const std::int64_t context = std::int64_t{64} << level;
  const std::int64_t documents =
      std::clamp<std::int64_t>(options_.batch_rows / (context + probe_rows(context)), 1, 16);
  const ReuseBatch batch = make_batch(context, documents, options_.batch, 0, random, false);
  ReuseObjective objective = options_.objective;
  objective.quota = static_cast<std::int64_t>(
      random.between(1, static_cast<std::size_t>(options_.objective.quota)));
  objective.start_steps = static_cast<std::int64_t>(
      random.between(0, static_cast<std::size_t>(options_.objective.start_steps)));
  at::manual_seed(random.next());  // dropout
  const at::Device device(options_.device);
  ReuseLoss loss;
  {
    const AutocastGuard autocast(options_.bfloat16, device.type());
    loss = reuse_loss(teacher_, student_, batch, objective);
  }
  ReuseReport report = report_of(loss, objective, batch);
  report.step = step_;
  report.context_length = context;
  report.learning_rate = learning_rate();
  if (loss.loss.defined()) loss.loss.backward();
  report.gradient_norm = parameters_.step(report.learning_rate, options_.adam, step_);
  ++step_;
  tokens_seen_ += report.tokens;
  return report;
}

ReuseReport ReuseTrainer::validate(std::size_t documents) const {
  const at::NoGradGuard no_grad;
  ReuseReport sum;
  ReuseBatchSpec spec = options_.batch;
  spec.random = false;
  ReuseObjective objective = options_.objective;
  objective.start_steps = 0;
  sum.step = step_;
  sum.context_length = std::int64_t{64} << options_.last_level;
  if (const auto* texts = std::get_if<TextSource>(&source_)) {
    documents = std::min(documents, texts->held_out);
  }
  for (std::size_t i = 0; i < documents; ++i) {
    TaskRandom random(TaskSplit::kTest, (options_.seed & 0xffff) + kStream, i);
    const ReuseBatch batch = make_batch(sum.context_length, 1, spec, i, random, true);
    const AutocastGuard autocast(options_.bfloat16, at::Device(options_.device).type());
    const ReuseLoss loss = reuse_loss(teacher_, evaluated_, batch, objective);
    sum.add(report_of(loss, objective, batch));
  }
  return sum;
}

void ReuseTrainer::save_state(const std::filesystem::path& path) const {
  parameters_.save(path, {{"format", kReuseStateFormat},
                          {"stage", train_stage_name(TrainStage::kReuse)},
                          {"settings", options_.settings},
                          {"step", std::to_string(step_)},
                          {"tokens_seen", std::to_string(tokens_seen_)}});
}

void ReuseTrainer::load_state(const std::filesystem::path& path) {
  const StateFile state(path);
  state.expect("format", kReuseStateFormat);
  parameters_.load(state);
  step_ = state.number("step");
  tokens_seen_ = state.number("tokens_seen");
}

void ReuseTrainer::export_adapter(const std::filesystem::path& folder,
                                  const std::string& base) const {
  std::filesystem::create_directories(folder);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, leaf] : parameters_.leaves()) {
    entries.push_back({name, TensorDtype::kF32, leaf.sizes().vec()});
  }
  SafetensorsWriter writer(folder / kAdapterWeightsName, entries,
                           {{"format", "pt"}, {kBaseDigestKey, base_digest_}});
  for (const auto& [name, leaf] : parameters_.leaves()) {
    const at::Tensor host = leaf.detach().cpu().contiguous();
    writer.write(name, host.const_data_ptr(), static_cast<std::size_t>(host.nbytes()));
  }
  writer.finish();
  OutputFile config((folder / kAdapterConfigName).string(), true);  // checked before the first step
  config.write(adapter_config_json(options_.lora, teacher_.config(), base));
  config.commit();
}

}  // namespace blockscope
