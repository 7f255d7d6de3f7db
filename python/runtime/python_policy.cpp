#include "python/runtime/python_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/policy_table.h"
#include "probe/policies/select_worker.h"
#include "probe/policies/selection_policy.h"
#include "python/runtime/own_choice.h"
#include "python/runtime/plugin_error.h"
#include "python/runtime/tensors.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

/// What a policy hears about one sequence at one pass: `step` in its calls.
struct PolicyStep {
  SequencePass pass;
  int64_t slot = 0;
  double scale = 0.0;
  nb::dict memory;  // the policy's own, as long as the sequence lives

  std::vector<int64_t> places(const std::vector<bool>& flags) const {
    std::vector<int64_t> found;
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i]) found.push_back(static_cast<int64_t>(i));
    }
    return found;
  }
};

/// The keys that `attend` may read: `external` in its call.
struct PolicyKeys {
  nb::object key, value, length;
};

/// The calls that a policy of Python may have.
struct Hooks {
  explicit Hooks(nb::object policy)
      : choose(hook(policy, "choose")),
        observe(hook(policy, "observe")),
        attend(hook(policy, "attend")),
        begin_pass(hook(policy, "begin_pass")),
        selected_size(hook(policy, "selected_size")),
        remove(hook(policy, "remove")) {}
  nb::object choose, observe, attend, begin_pass, selected_size, remove;

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
      try {
        return nb::cast<int64_t>(hooks_->selected_size(longest));
      } catch (nb::python_error& error) {
        refuse_plugin(error, fmt::format("policy {} ({}): selected_size()", name_, file_));
      }
    }
    if (selected_ > 0) return selected_;
    return hooks_->choose.is_none() ? 0 : longest;
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
    call("begin_pass", -1, 0, [&] { hooks_->begin_pass(all); });
  }

  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    if (std::ranges::none_of(context_->sequences, denoises))
      return exact_attention(input, external);
    return hooks_->attend.is_none() ? sparse(input, external) : own(input, external);
  }

  void end_pass() override {
    worker_->wait();
    check_finite();
  }

  void remove(int64_t slot) override {
    const auto last = static_cast<int64_t>(steps_.size()) - 1;
    if (slot > last) return;
    const nb::gil_scoped_acquire gil;
    if (slot != last) steps_[static_cast<size_t>(slot)] = std::move(steps_.back());
    steps_.pop_back();
    if (!hooks_->remove.is_none()) call("remove", -1, slot, [&] { hooks_->remove(slot); });
  }

 private:
  static bool denoises(const SequencePass& pass) { return pass.kind == PassKind::denoise; }

  std::string place(const char* function, int64_t layer, int64_t slot) const {
    const SequencePass& pass = context_->sequences[static_cast<size_t>(slot)];
    const std::string where = layer < 0 ? "" : fmt::format(", layer {}", layer);
    return fmt::format("policy {} ({}): {}(){}, step {} of block {} of sequence {}", name_, file_,
                       function, where, pass.step, pass.block, pass.sequence);
  }

  /// Calls Python code, with Python's lock. An exception becomes an Error that names the place.
  template <typename Work>
  std::invoke_result_t<Work> call(const char* function, int64_t layer, int64_t slot,
                                  Work&& work) const {
    try {
      return work();
    } catch (nb::python_error& error) {
      refuse_plugin(error, place(function, layer, slot));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", place(function, layer, slot), error.what()));
    }
  }

  AttentionParts sparse(const AttentionInput& input, const ExternalKeys& external) {
    const auto& passes = context_->sequences;
    std::vector<ChosenSet> chosen(passes.size());
    {
      const Stopwatch watch(inline_ns_);
      const nb::gil_scoped_acquire gil;
      for (size_t s = 0; s < passes.size(); ++s) {
        if (!denoises(passes[s])) continue;
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
      if (denoises(passes[s]) && !chosen[s].set.index.defined() && !hooks_->observe.is_none()) {
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
          fmt::format("{}: {}", place("choose", input.layer, 0), error.what_without_backtrace()));
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
    chosen.set.index = checked(from_python(result, "positions"), external, length);
    return chosen;
  }

  /// The positions as [K, k] int32, in range and distinct.
  at::Tensor checked(at::Tensor index, const ExternalKeys& external, int64_t length) const {
    const int64_t kv_heads = external.key.size(1);
    if (!at::isIntegralType(index.scalar_type(), /*includeBool=*/false)) {
      throw Error(fmt::format("positions: expected whole numbers, got {}",
                              at::toString(index.scalar_type())));
    }
    if (index.device() != external.key.device()) {
      throw Error(fmt::format("positions: expected them on {}, got {}", external.key.device().str(),
                              index.device().str()));
    }
    const at::IntArrayRef shape = index.sizes();
    if (index.dim() == 3 && index.size(0) == 1) index = index.squeeze(0);
    if (index.dim() == 1) index = index.unsqueeze(0).expand({kv_heads, -1});
    if (index.dim() != 2 || index.size(0) != kv_heads) {
      throw Error(fmt::format("positions: expected [k], [{0}, k] or [1, {0}, k], got [{1}]",
                              kv_heads, fmt::join(shape, ", ")));
    }
    if (index.size(1) > selected_size(length)) {
      throw Error(fmt::format("positions: expected at most {} for each KV head, got {}",
                              selected_size(length), index.size(1)));
    }
    check_positions(on_host(index), length);
    return index.to(at::kInt).contiguous();
  }

  static void check_positions(const at::Tensor& host, int64_t length) {
    const at::Tensor index = host.to(at::kLong).contiguous();
    const auto* at = index.const_data_ptr<int64_t>();
    std::vector<uint64_t> bits;
    for (int64_t head = 0; head < index.size(0); ++head) {
      bits.assign(static_cast<size_t>((length + 63) / 64), 0);
      for (int64_t i = 0; i < index.size(1); ++i) {
        const int64_t position = *at++;
        if (position == -1) continue;
        if (position < 0 || position >= length) {
          throw Error(fmt::format("positions: KV head {}: expected -1 or 0 to {}, got {}", head,
                                  length - 1, position));
        }
        uint64_t& word = bits[static_cast<size_t>(position / 64)];
        const uint64_t bit = uint64_t{1} << static_cast<uint64_t>(position % 64);
        if ((word & bit) != 0) {
          throw Error(fmt::format(
              "positions: KV head {}: expected every position once, got {} twice", head, position));
        }
        word |= bit;
      }
    }
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
  AttentionParts own_parts(const nb::object& result, const AttentionInput& input,
                           const ExternalKeys& external) const;
  void check_finite();

  std::string name_, file_;
  int64_t selected_;
  bool residual_;
  std::unique_ptr<Hooks> hooks_;
  std::vector<nb::object> steps_;                       // [slot] PolicyStep
  std::vector<std::pair<int64_t, at::Tensor>> finite_;  // of attend(): layer, and whether it was
  const PassContext* context_ = nullptr;
  int64_t inline_ns_ = 0;
  std::unique_ptr<SelectWorker> worker_ = std::make_unique<SelectWorker>();
};

/// A result of attend(): an object with attributes, or a dict.
class Given {
 public:
  explicit Given(nb::object result) : result_(std::move(result)) {}
  /// None if it is not given.
  nb::object get(const char* name) const {
    if (!nb::isinstance<nb::dict>(result_)) return nb::getattr(result_, name, nb::none());
    const auto all = nb::cast<nb::dict>(result_);
    return all.contains(name) ? nb::object(all[name]) : nb::none();
  }
  /// A tensor of this shape, as float32 if it has no type of its own. Throws Error.
  at::Tensor tensor(const char* name, at::IntArrayRef shape, at::ScalarType type) const {
    const nb::object value = get(name);
    if (value.is_none()) {
      throw Error(fmt::format("expected {}, got a result without it", name));
    }
    const at::Tensor found = from_python(value, name);
    if (found.sizes() != shape) {
      throw Error(fmt::format("{}: expected [{}], got [{}]", name, fmt::join(shape, ", "),
                              fmt::join(found.sizes(), ", ")));
    }
    return found.to(type);
  }
  bool has(const char* name) const { return !get(name).is_none(); }

 private:
  nb::object result_;
};

/// The parts of the sequences as parts of the batch. A field that some of them lack gets `fill`.
at::Tensor joined(const std::vector<AttentionParts>& all, at::Tensor AttentionParts::*field,
                  const at::Scalar& fill) {
  const auto has = [&](const AttentionParts& one) { return (one.*field).defined(); };
  const auto found = std::ranges::find_if(all, has);
  if (found == all.end()) return {};
  std::vector<at::Tensor> parts;
  for (const AttentionParts& one : all) {
    parts.push_back(has(one) ? one.*field : at::full_like((*found).*field, fill));
  }
  return at::cat(parts, 0);
}

/// The sets of the sequences, padded to one width.
at::Tensor joined_sets(const std::vector<AttentionParts>& all) {
  int64_t widest = -1;
  for (const AttentionParts& one : all) {
    if (one.selected.defined()) widest = std::max(widest, one.selected.size(2));
  }
  if (widest < 0) return {};
  std::vector<at::Tensor> parts;
  const int64_t kv_heads = all.front().keys_read.size(1);
  for (const AttentionParts& one : all) {
    at::Tensor padded = at::full({1, kv_heads, widest}, -1, one.out.options().dtype(at::kInt));
    if (one.selected.defined()) {
      padded.narrow(2, 0, one.selected.size(2)).copy_(one.selected);
    }
    parts.push_back(std::move(padded));
  }
  return at::cat(parts, 0);
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
      return own_parts(result, {input.layer, q, k, v, input.scale}, own_keys);
    }));
    finite_.emplace_back(input.layer, all.back().out.isfinite().all());
  }
  AttentionParts parts;
  parts.out = joined(all, &AttentionParts::out, 0);
  parts.external = joined(all, &AttentionParts::external, 0);
  parts.lse_external = joined(all, &AttentionParts::lse_external, 0);
  parts.internal = joined(all, &AttentionParts::internal, 0);
  parts.lse_internal = joined(all, &AttentionParts::lse_internal, 0);
  parts.reused = joined(all, &AttentionParts::reused, false);
  parts.keys_read = joined(all, &AttentionParts::keys_read, 0);
  parts.selected = joined_sets(all);
  parts.residual = joined(all, &AttentionParts::residual, 0);
  parts.lse_residual =
      joined(all, &AttentionParts::lse_residual, -std::numeric_limits<double>::infinity());
  parts.rows_scored = joined(all, &AttentionParts::rows_scored, 0);
  return parts;
}

AttentionParts PythonPolicy::own_parts(const nb::object& result, const AttentionInput& input,
                                       const ExternalKeys& external) const {
  const Given given(result);
  const at::IntArrayRef shape = input.q.sizes();
  const at::IntArrayRef rows = shape.slice(0, 3);
  const int64_t length = external.key.size(2);
  const int64_t kv_heads = external.key.size(1);
  AttentionParts parts;
  parts.external = given.tensor("external", shape, at::kFloat);
  parts.lse_external = given.tensor("lse_external", rows, at::kFloat);
  parts.internal = given.tensor("internal", shape, at::kFloat);
  parts.lse_internal = given.tensor("lse_internal", rows, at::kFloat);
  std::vector<at::Tensor> outputs{parts.external, parts.internal};
  std::vector<at::Tensor> lses{parts.lse_external, parts.lse_internal};
  if (given.has("residual")) {
    parts.residual = given.tensor("residual", shape, at::kFloat);
    parts.lse_residual = given.tensor("lse_residual", rows, at::kFloat);
    outputs.push_back(parts.residual);
    lses.push_back(parts.lse_residual);
  }
  parts.out = given.has("out") ? given.tensor("out", shape, input.q.scalar_type())
                               : merge_attention(outputs, lses).out.to(input.q.scalar_type());
  at::Tensor read = at::full({1, kv_heads}, length, at::kLong);
  if (given.has("selected")) {
    parts.selected =
        checked(from_python(given.get("selected"), "selected"), external, length).unsqueeze(0);
    read = on_host((parts.selected >= 0).sum(2));
  }
  if (given.has("keys_read")) {
    read = on_host(from_python(given.get("keys_read"), "keys_read")).to(at::kLong);
    if (read.dim() == 0) read = read.expand({kv_heads});
    if (read.numel() != kv_heads || read.lt(0).any().item<bool>() ||
        read.gt(length).any().item<bool>()) {
      throw Error(fmt::format("keys_read: expected a number from 0 to {}, or {} of them", length,
                              kv_heads));
    }
    read = read.reshape({1, kv_heads}).contiguous();
  }
  parts.keys_read = read;
  if (given.has("reused")) {
    parts.reused = on_host(given.tensor("reused", {input.q.size(1)}, at::kBool)).unsqueeze(0);
  }
  if (given.has("rows_scored")) {
    parts.rows_scored = at::full({1}, nb::cast<int64_t>(given.get("rows_scored")), at::kLong);
  }
  return parts;
}

/// One copy to the host for all layers of the pass.
void PythonPolicy::check_finite() {
  if (finite_.empty()) return;
  std::vector<at::Tensor> flags;
  for (const auto& [layer, flag] : finite_) flags.push_back(flag);
  const at::Tensor all = on_host(at::stack(flags));
  for (size_t i = 0; i < finite_.size(); ++i) {
    if (all[static_cast<int64_t>(i)].item<bool>()) continue;
    const int64_t layer = finite_[i].first;
    finite_.clear();
    throw Error(
        fmt::format("{}: expected finite numbers, got NaN or infinity", place("attend", layer, 0)));
  }
  finite_.clear();
}

}  // namespace

void bind_python_policy(nb::module_& module) {
  nb::class_<PolicyKeys>(module, "ExternalKeys")
      .def_ro("key", &PolicyKeys::key)
      .def_ro("value", &PolicyKeys::value)
      .def_ro("length", &PolicyKeys::length);
  const auto fact = [](auto member) {
    return [member](const PolicyStep& step) { return step.pass.*member; };
  };
  nb::class_<PolicyStep>(module, "Step")
      .def_prop_ro("kind",
                   [](const PolicyStep& step) {
                     return step.pass.kind == PassKind::commit ? "commit" : "denoise";
                   })
      .def_prop_ro("sequence", fact(&SequencePass::sequence))
      .def_ro("slot", &PolicyStep::slot)
      .def_prop_ro("block", fact(&SequencePass::block))
      .def_prop_ro("block_start", fact(&SequencePass::block_start))
      .def_prop_ro("step", fact(&SequencePass::step))
      .def_prop_ro("first", [](const PolicyStep& step) { return step.pass.first_step(); })
      .def_prop_ro("run_step", fact(&SequencePass::run_step))
      .def_prop_ro("planned_steps", fact(&SequencePass::planned_steps))
      .def_prop_ro("context_length", fact(&SequencePass::context_length))
      .def_prop_ro("masks_left", fact(&SequencePass::masks_left))
      .def_prop_ro("decided", fact(&SequencePass::decided))
      .def_prop_ro("since_read", fact(&SequencePass::since_read))
      .def_prop_ro("masked", [](const PolicyStep& step) { return step.places(step.pass.masked); })
      .def_prop_ro("changed",
                   [](const PolicyStep& step) { return step.places(step.pass.changed_rows); })
      .def_ro("scale", &PolicyStep::scale)
      .def_ro("memory", &PolicyStep::memory);
}

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
    try {
      nb::object policy = make.get()(**keywords);
      if (nb::hasattr(policy, "setup")) {
        policy.attr("setup")(model_facts(model));
      }
      return std::make_unique<PythonPolicy>(name, file, std::move(policy), options.k.value_or(0));
    } catch (nb::python_error& error) {
      refuse_plugin(error, fmt::format("policy {} ({})", policy_text(options), file));
    }
  };
  add_policy(std::move(entry));
}

}  // namespace blockscope::python
