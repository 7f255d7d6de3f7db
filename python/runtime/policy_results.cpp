#include "python/runtime/policy_results.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/model/device.h"
#include "python/runtime/tensors.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

void check_positions(const char* what, const at::Tensor& host, int64_t length) {
  const at::Tensor index = host.to(at::kLong).contiguous();
  const auto* at = index.const_data_ptr<int64_t>();
  std::vector<uint64_t> bits;
  for (int64_t head = 0; head < index.size(0); ++head) {
    bits.assign(static_cast<size_t>((length + 63) / 64), 0);
    for (int64_t i = 0; i < index.size(1); ++i) {
      const int64_t position = *at++;
      if (position == -1) continue;
      if (position < 0 || position >= length) {
        throw Error(fmt::format("{}: KV head {}: expected -1 or 0 to {}, got {}", what, head,
                                length - 1, position));
      }
      uint64_t& word = bits[static_cast<size_t>(position / 64)];
      const uint64_t bit = uint64_t{1} << static_cast<uint64_t>(position % 64);
      if ((word & bit) != 0) {
        throw Error(fmt::format("{}: KV head {}: expected every position once, got {} twice", what,
                                head, position));
      }
      word |= bit;
    }
  }
}

constexpr std::array<std::string_view, 11> kFields{
    "external",  "lse_external", "internal", "lse_internal", "out",         "selected",
    "keys_read", "rows_scored",  "reused",   "residual",     "lse_residual"};

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
  /// A dict has no other names. (An object may have attributes of its own.)
  void check_names() const {
    if (!nb::isinstance<nb::dict>(result_)) return;
    for (const auto& [key, value] : nb::cast<nb::dict>(result_)) {
      const auto name = nb::cast<std::string>(nb::str(key));
      if (std::ranges::find(kFields, name) != kFields.end()) continue;
      throw Error(fmt::format("expected {}, got {}", fmt::join(kFields, ", "), name));
    }
  }

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

}  // namespace

at::Tensor positions_from(nb::handle given, const char* what, const ExternalKeys& external,
                          int64_t length, int64_t most) {
  at::Tensor index = from_python(given, what);
  if (index.numel() == 0) index = index.to(at::kLong);  // torch makes float32 of an empty list
  const int64_t kv_heads = external.key.size(1);
  if (!at::isIntegralType(index.scalar_type(), /*includeBool=*/false)) {
    throw Error(
        fmt::format("{}: expected whole numbers, got {}", what, at::toString(index.scalar_type())));
  }
  if (index.device() != external.key.device()) {
    throw Error(fmt::format("{}: expected them on {}, got {}", what, external.key.device().str(),
                            index.device().str()));
  }
  const at::IntArrayRef shape = index.sizes();
  if (index.dim() == 3 && index.size(0) == 1) index = index.squeeze(0);
  if (index.dim() == 1) index = index.unsqueeze(0).expand({kv_heads, -1});
  if (index.dim() != 2 || index.size(0) != kv_heads) {
    throw Error(fmt::format("{0}: expected [k], [{1}, k] or [1, {1}, k], got [{2}]", what, kv_heads,
                            fmt::join(shape, ", ")));
  }
  if (index.size(1) > most) {
    throw Error(
        fmt::format("{}: expected at most {} for each KV head, got {}. HINT: selected_size() says "
                    "how many there may be; without it the option k does",
                    what, most, index.size(1)));
  }
  check_positions(what, on_host(index), length);
  return index.to(at::kInt).contiguous();
}

AttentionParts parts_from(nb::object result, const AttentionInput& input,
                          const ExternalKeys& external, int64_t most, bool keeps_residual) {
  const Given given(std::move(result));
  given.check_names();
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
    if (!keeps_residual) {
      throw Error(
          "residual: expected a class with keeps_residual = True, got one without. HINT: the trace "
          "needs room for it");
    }
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
        positions_from(given.get("selected"), "selected", external, length, most).unsqueeze(0);
    read = on_host((parts.selected >= 0).sum(2));
    if (external.windowed()) {  // `key` begins at the window's first position
      const at::Tensor moved = parts.selected + external.first.to(parts.selected.device());
      parts.selected = at::where(parts.selected >= 0, moved, parts.selected);
    }
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
    const auto scored = nb::cast<int64_t>(given.get("rows_scored"));
    if (scored < 0) throw Error(fmt::format("rows_scored: expected 0 or more, got {}", scored));
    parts.rows_scored = at::full({1}, scored, at::kLong);
  }
  return parts;
}

AttentionParts joined_parts(const std::vector<AttentionParts>& all) {
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

}  // namespace blockscope::python
