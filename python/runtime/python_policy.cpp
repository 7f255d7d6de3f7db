#include "python/runtime/python_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"
#include "kernels/ops.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/policy_table.h"
#include "probe/policies/select_worker.h"
#include "probe/policies/selection_policy.h"
#include "python/runtime/own_choice.h"
#include "python/runtime/plugin_error.h"
#include "python/runtime/policy_results.h"
#include "python/runtime/policy_step.h"
#include "python/runtime/tensors.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

/// The calls that a policy of Python may have.
struct Hooks {
  explicit Hooks(nb::object policy)
      : choose(hook(policy, "choose")),
        observe(hook(policy, "observe")),
        observes(hook(policy, "observes")),
        attend(hook(policy, "attend")),
        begin_pass(hook(policy, "begin_pass")),
        selected_size(hook(policy, "selected_size")),
        remove(hook(policy, "remove")) {}
  nb::object choose, observe, observes, attend, begin_pass, selected_size, remove;

 private:
  static nb::object hook(const nb::object& policy, const char* name) {
    return nb::getattr(policy, name, nb::none());
  }
};

/// The set that `choose` returned for one sequence, and the key rows that it read for it.
struct ChosenSet {
  KeySelection set;  // without an index: the sequence reads everything
  int64_t rows_scored = 0;
};

class PythonPolicy final : public AttentionPolicy {
 public:
  PythonPolicy(std::string name, std::string file, nb::object policy, int64_t selected)
      : name_(std::move(name)),
        file_(std::move(file)),
        selected_(selected),
        residual_(nb::cast<bool>(nb::getattr(policy, "keeps_residual", nb::bool_(false)))),
        hooks_(std::make_unique<Hooks>(std::move(policy))) {
    if (hooks_->choose.is_none() == hooks_->attend.is_none()) {
      throw UsageError(fmt::format("{}: expected a class with either choose() or attend(), got {}",
                                   file_, hooks_->choose.is_none() ? "none" : "both"));
    }
  }
  ~PythonPolicy() override {
    worker_.reset();  // its thread may wait for Python's lock
    const nb::gil_scoped_acquire gil;
    steps_.clear();
    hooks_.reset();
  }

  std::string name() const override { return name_; }
  int64_t selected_size(int64_t longest) const override {
    if (!hooks_->selected_size.is_none()) {
      const nb::gil_scoped_acquire gil;
      return call("selected_size", -1, -1,
                  [&] { return nb::cast<int64_t>(hooks_->selected_size(longest)); });
    }
    if (selected_ > 0) return selected_;
    return hooks_->choose.is_none() ? 0 : longest;  // a trace has no room for sets of attend()
  }
  bool keeps_residual() const override { return residual_; }
  ChoosingTime choosing_time() const override {
    return {inline_ns_, worker_->busy_ns(), worker_->waited_ns()};
  }

  void begin_pass(const PassContext& context) override {
    worker_->wait();  // after a pass that an exception cut short
    finite_.clear();
    context_ = &context;
    const nb::gil_scoped_acquire gil;
    steps_.resize(context.sequences.size());
    for (size_t s = 0; s < steps_.size(); ++s) {
      const SequencePass& pass = context.sequences[s];
      const bool begins = pass.kind == PassKind::denoise && pass.run_step == 1;
      const bool same = steps_[s].is_valid() && !begins &&
                        nb::cast<PolicyStep&>(steps_[s]).pass.sequence == pass.sequence;
      PolicyStep step{pass, static_cast<int64_t>(s), 0.0,
                      same ? nb::cast<PolicyStep&>(steps_[s]).memory : nb::dict()};
      step.pass.prompt = nullptr;  // valid only while the pass runs
      step.pass.regions = nullptr;
      steps_[s] = nb::cast(std::move(step));
    }
    if (hooks_->begin_pass.is_none()) return;
    nb::list all;
    for (const nb::object& step : steps_) all.append(step);
    call("begin_pass", -1, -1, [&] { hooks_->begin_pass(all); });
  }

  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    if (std::ranges::none_of(context_->sequences, denoises))
      return exact_attention(input, external);
    return hooks_->attend.is_none() ? sparse(input, external) : own(input, external);
  }

  void end_pass() override {
    worker_->wait();
    check_finite();
    context_ = nullptr;
  }

  void remove(int64_t slot) override {
    const auto last = static_cast<int64_t>(steps_.size()) - 1;
    if (slot > last) return;
    const nb::gil_scoped_acquire gil;
    if (slot != last) steps_[static_cast<size_t>(slot)] = std::move(steps_.back());
    steps_.pop_back();
    if (!hooks_->remove.is_none()) call("remove", -1, -1, [&] { hooks_->remove(slot); });
  }

 private:
  static bool denoises(const SequencePass& pass) { return pass.kind == PassKind::denoise; }

  /// Without a prefix there is nothing to choose.
  static bool chooses(const SequencePass& pass) {
    return denoises(pass) && pass.context_length > 0;
  }

  /// Names the call for messages. Takes Python's lock.
  std::string place(const char* function, int64_t layer, int64_t slot) const {
    const std::string where = layer < 0 ? "" : fmt::format(", layer {}", layer);
    const nb::gil_scoped_acquire gil;
    if (slot < 0 || slot >= std::ssize(steps_)) {
      return fmt::format("policy {} ({}): {}(){}", name_, file_, function, where);
    }
    const SequencePass& pass = nb::cast<PolicyStep&>(steps_[static_cast<size_t>(slot)]).pass;
    return fmt::format("policy {} ({}): {}(){}, step {} of block {} of sequence {}", name_, file_,
                       function, where, pass.step, pass.block, pass.sequence);
  }

  template <typename Work>
  std::invoke_result_t<Work> call(const char* function, int64_t layer, int64_t slot,
                                  Work&& work) const {
    return call_plugin([&] { return place(function, layer, slot); }, std::forward<Work>(work));
  }

  AttentionParts sparse(const AttentionInput& input, const ExternalKeys& external) {
    // A window is short, and its positions move from block to block (as in SelectionPolicy).
    if (external.windowed()) return exact_attention(input, external);
    const auto& passes = context_->sequences;
    std::vector<ChosenSet> chosen(passes.size());
    {
      const Stopwatch watch(inline_ns_);
      const nb::gil_scoped_acquire gil;
      for (size_t s = 0; s < passes.size(); ++s) {
        if (!chooses(passes[s])) continue;
        const auto slot = static_cast<int64_t>(s);
        chosen[s] =
            call("choose", input.layer, slot, [&] { return choice(input, external, slot); });
      }
    }
    std::vector<const KeySelection*> sets;
    for (const ChosenSet& one : chosen) sets.push_back(&one.set);
    const bool any =
        std::ranges::any_of(sets, [](const auto* set) { return set->index.defined(); });
    AttentionParts parts;
    if (any) {
      parts = gathered(input, external, sets);
    } else {
      parts = exact_attention(input, external);
    }
    for (size_t s = 0; s < passes.size(); ++s) {
      int64_t rows = chosen[s].rows_scored;
      if (chooses(passes[s]) && !chosen[s].set.index.defined() &&
          observes(input, static_cast<int64_t>(s))) {
        rows += external.length[static_cast<int64_t>(s)].item<int64_t>();
        observe(input, external, static_cast<int64_t>(s), parts.lse_external);
      }
      if (rows == 0) continue;
      if (!parts.rows_scored.defined()) {
        parts.rows_scored = at::zeros({static_cast<int64_t>(passes.size())}, at::kLong);
      }
      parts.rows_scored[static_cast<int64_t>(s)] = rows;
    }
    return parts;
  }

  AttentionParts gathered(const AttentionInput& input, const ExternalKeys& external,
                          const std::vector<const KeySelection*>& sets) const {
    try {
      return selected_attention(input, external, sets);
    } catch (const c10::Error& error) {
      throw Error(
          fmt::format("{}: {}", place("choose", input.layer, -1), error.what_without_backtrace()));
    }
  }

  ChosenSet choice(const AttentionInput& input, const ExternalKeys& external, int64_t slot) const {
    const int64_t length = external.length[slot].item<int64_t>();
    const nb::object& step = stepped(slot, input.scale);
    nb::object result =
        hooks_->choose(input.layer, to_python(input.q.narrow(0, slot, 1)),
                       to_python(external.key.narrow(0, slot, 1).narrow(2, 0, length)), step);
    ChosenSet chosen;
    if (nb::isinstance<nb::tuple>(result)) {
      const auto pair = nb::cast<nb::tuple>(result);
      if (pair.size() != 2) throw Error("expected (positions, rows read), got another tuple");
      chosen.rows_scored = nb::cast<int64_t>(pair[1]);
      if (chosen.rows_scored < 0) {
        throw Error(fmt::format("rows read: expected 0 or more, got {}", chosen.rows_scored));
      }
      result = pair[0];
    } else if (!result.is_none()) {
      chosen.rows_scored = length;
    }
    if (result.is_none()) return chosen;
    chosen.set.index = positions_from(result, "positions", external, length, selected_size(length));
    return chosen;
  }

  /// Whether the policy wants to observe this step: by default every step that read every key.
  bool observes(const AttentionInput& input, int64_t slot) {
    if (hooks_->observe.is_none()) return false;
    if (hooks_->observes.is_none()) return true;
    const Stopwatch watch(inline_ns_);
    const nb::gil_scoped_acquire gil;
    return call("observes", input.layer, slot, [&] {
      return nb::cast<bool>(hooks_->observes(input.layer, stepped(slot, input.scale)));
    });
  }

  /// Runs observe() in parallel with the layer, as MAGE's second stream does: on the CPU.
  void observe(const AttentionInput& input, const ExternalKeys& external, int64_t slot,
               const at::Tensor& lse) {
    const int64_t length = external.length[slot].item<int64_t>();
    const int64_t layer = input.layer;
    const at::Tensor q = input.q.narrow(0, slot, 1);
    const at::Tensor key = external.key.narrow(0, slot, 1).narrow(2, 0, length);
    const at::Tensor of_slot = lse.narrow(0, slot, 1);
    const auto work = [this, layer, slot, q, key, of_slot, scale = input.scale] {
      const nb::gil_scoped_acquire gil;
      call("observe", layer, slot, [&] {
        hooks_->observe(layer, to_python(q), to_python(key), to_python(of_slot),
                        stepped(slot, scale));
      });
    };
    if (q.is_cpu()) {
      worker_->submit(work);
    } else {
      const Stopwatch watch(inline_ns_);
      work();
    }
  }

  const nb::object& stepped(int64_t slot, double scale) const {
    const nb::object& step = steps_[static_cast<size_t>(slot)];
    nb::cast<PolicyStep&>(step).scale = scale;
    return step;
  }

  AttentionParts own(const AttentionInput& input, const ExternalKeys& external);
  void check_finite();

  std::string name_, file_;
  int64_t selected_;
  bool residual_;
  std::unique_ptr<Hooks> hooks_;
  std::vector<nb::object> steps_;  // [slot] PolicyStep
  /// Whether the results of attend() are finite.
  struct Finite {
    int64_t layer, slot;
    at::Tensor flag;
  };
  std::vector<Finite> finite_;
  const PassContext* context_ = nullptr;
  int64_t inline_ns_ = 0;
  std::unique_ptr<SelectWorker> worker_ = std::make_unique<SelectWorker>();
};

/// The kernels did not compute these weights: NaN everywhere.
void unknown_spread(WeightSpread& spread, const AttentionInput& input) {
  const int64_t sequences = input.q.size(0);
  const int64_t heads = input.q.size(1);
  const int64_t keys = input.k.size(2);
  const auto ranges = spread.ends.empty() ? int64_t{0} : std::ssize(spread.ends.front());
  const auto unknown = [&](int64_t last) {
    return at::full({sequences, heads, last}, kNaN, input.q.options().dtype(at::kFloat));
  };
  spread.entropy = unknown(3);
  spread.largest = unknown(3);
  spread.range = unknown(ranges);
  spread.key = unknown(keys);
  spread.offset = unknown(2 * keys - 1);
}

AttentionParts PythonPolicy::own(const AttentionInput& input, const ExternalKeys& external) {
  const auto& passes = context_->sequences;
  std::vector<AttentionParts> all;
  for (size_t s = 0; s < passes.size(); ++s) {
    const auto slot = static_cast<int64_t>(s);
    const auto row = [slot](const at::Tensor& tensor) { return tensor.narrow(0, slot, 1); };
    const at::Tensor length = row(external.length);
    const int64_t keys = length.item<int64_t>();
    const ExternalKeys own_keys{row(external.key).narrow(2, 0, keys),
                                row(external.value).narrow(2, 0, keys), length};
    const at::Tensor q = row(input.q);
    const at::Tensor k = row(input.k);
    const at::Tensor v = row(input.v);
    if (!denoises(passes[s])) {
      all.push_back(exact_attention({input.layer, q, k, v, input.scale}, own_keys));
      all.back().keys_read = at::full({1, external.key.size(1)}, keys, at::kLong);
      continue;
    }
    const Stopwatch watch(inline_ns_);
    const nb::gil_scoped_acquire gil;
    all.push_back(call("attend", input.layer, slot, [&] {
      static const auto* const ops =
          new nb::object(nb::module_::import_("blockscope.ops"));  // never freed
      const nb::object result = hooks_->attend(
          input.layer, to_python(q), to_python(k), to_python(v),
          PolicyKeys{to_python(own_keys.key), to_python(own_keys.value), to_python(length)},
          stepped(slot, input.scale), *ops);
      return parts_from(result, {input.layer, q, k, v, input.scale}, own_keys, selected_size(keys),
                        residual_);
    }));
    const AttentionParts& own = all.back();
    at::Tensor finite = own.out.isfinite().all();
    for (const at::Tensor& part : {own.external, own.internal, own.residual}) {
      if (part.defined()) finite = finite.logical_and(part.isfinite().all());
    }
    for (const at::Tensor& lse : {own.lse_external, own.lse_internal, own.lse_residual}) {
      if (lse.defined()) finite = finite.logical_and(lse.isnan().any().logical_not());
    }
    finite_.push_back({input.layer, slot, finite});
  }
  if (input.spread != nullptr) unknown_spread(*input.spread, input);
  return joined_parts(all);
}

/// One copy to the host for all layers of the pass.
void PythonPolicy::check_finite() {
  if (finite_.empty()) return;
  const std::vector<Finite> results = std::exchange(finite_, {});
  std::vector<at::Tensor> flags;
  for (const Finite& one : results) flags.push_back(one.flag);
  const at::Tensor all = on_host(at::stack(flags));
  for (size_t i = 0; i < results.size(); ++i) {
    if (all[static_cast<int64_t>(i)].item<bool>()) continue;
    throw Error(fmt::format("{}: expected finite numbers, got NaN or infinity",
                            place("attend", results[i].layer, results[i].slot)));
  }
}

}  // namespace

void add_python_policy(const nb::dict& facts, nb::object make) {
  PolicyEntry entry;
  static_cast<ChoiceFacts&>(entry) = choice_facts("policy", facts);
  entry.sparse = true;
  entry.reads = [](const PolicyOptions&, int64_t, int64_t) { return std::nullopt; };
  for (const OwnOption& own : own_options(facts)) {
    entry.options.push_back(own.name == "k" && own.kind == OwnOption::Kind::whole
                                ? own_k(own)
                                : own_option(own, &PolicyOptions::own, entry.name));
  }
  entry.check = [options = own_options(facts)](const PolicyOptions& given) {
    check_given(options, given.own, given.k.has_value());
  };
  entry.make = [file = nb::cast<std::string>(facts["file"]), make = KeptObject(std::move(make)),
                name = entry.name](const PolicyOptions& options, const PolicyModel& model,
                                   nlohmann::json&) -> std::unique_ptr<AttentionPolicy> {
    const nb::gil_scoped_acquire gil;
    nb::dict keywords = own_keywords(options.own);
    if (options.k) keywords["k"] = *options.k;
    return call_plugin([&] { return fmt::format("policy {} ({})", policy_text(options), file); },
                       [&]() -> std::unique_ptr<AttentionPolicy> {
                         nb::object policy = make.get()(**keywords);
                         if (nb::hasattr(policy, "setup")) {
                           policy.attr("setup")(model_facts(model));
                         }
                         return std::make_unique<PythonPolicy>(name, file, std::move(policy),
                                                               options.k.value_or(0));
                       });
  };
  add_policy(std::move(entry));
}

}  // namespace blockscope::python
