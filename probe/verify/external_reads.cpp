#include "probe/verify/external_reads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "probe/decode/decode_observer.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

void add_each(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.resize(std::max(to.size(), from.size()), 0);
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

double share_of(double part, double whole) { return whole == 0.0 ? 0.0 : part / whole; }

}  // namespace

ExternalReads::ExternalReads(const LayerSizes& sizes)
    : shape(sizes),
      rows(static_cast<size_t>(shape.num_layers * shape.num_kv_heads)),
      rows_read(rows.size()),
      products(static_cast<size_t>(shape.num_layers * shape.num_heads)),
      products_skipped(products.size()),
      commit_rows(static_cast<size_t>(shape.num_layers)),
      choice_rows(commit_rows.size()) {}

ExternalReads& ExternalReads::operator+=(const ExternalReads& other) {
  if (shape == LayerSizes{}) shape = other.shape;
  add_each(rows, other.rows);
  add_each(rows_read, other.rows_read);
  add_each(products, other.products);
  add_each(products_skipped, other.products_skipped);
  add_each(commit_rows, other.commit_rows);
  add_each(choice_rows, other.choice_rows);
  return *this;
}

int64_t ExternalReads::total_rows() const { return sum(rows); }
int64_t ExternalReads::total_read() const { return sum(rows_read); }
int64_t ExternalReads::total_commits() const { return sum(commit_rows); }
int64_t ExternalReads::total_choice() const { return sum(choice_rows); }
int64_t ExternalReads::total_products() const { return sum(products); }
int64_t ExternalReads::total_products_skipped() const { return sum(products_skipped); }

double ExternalReads::in_largest_rows(const std::vector<int64_t>& counts) const {
  if (!shape.ragged()) return static_cast<double>(sum(counts));
  int64_t elements = 0;
  const int64_t each = std::ssize(counts) / shape.num_layers;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto first = counts.begin() + layer * each;
    elements += shape.head_dim_of(layer) * std::accumulate(first, first + each, int64_t{0});
  }
  return static_cast<double>(elements) / static_cast<double>(shape.head_dim);
}

double ExternalReads::saving() const {
  const double all = in_largest_rows(rows);
  return share_of(all - in_largest_rows(rows_read), all);
}

double ExternalReads::saving_with_choice() const {
  return saving() - 0.5 * share_of(in_largest_rows(choice_rows), in_largest_rows(rows));
}

double ExternalReads::saving_with_commits() const {
  const double all = in_largest_rows(rows);
  return share_of(all - in_largest_rows(rows_read), all + in_largest_rows(commit_rows));
}

double ExternalReads::products_saving() const {
  return share_of(static_cast<double>(total_products_skipped()),
                  static_cast<double>(total_products()));
}

double ExternalReads::flops(int64_t head_dim) const {
  return 4.0 * static_cast<double>(head_dim) * in_largest_rows(products);
}

double ExternalReads::flops_avoided(int64_t head_dim) const {
  return 4.0 * static_cast<double>(head_dim) * in_largest_rows(products_skipped);
}

void PassReads::add(const AttentionView& view) {
  layers_.push_back({view.input.layer, view.used.keys_read, view.used.reused, view.used.refreshed,
                     view.used.rows_scored});
}

namespace {

/// The encoder pass over a finished canvas, whose layers nobody sees.
void add_unseen_commits(ExternalReads& reads, const PassContext& context) {
  const LayerSizes& shape = reads.shape;
  for (const SequencePass& pass : context.sequences) {
    if (pass.kind != PassKind::commit) continue;
    for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
      const int64_t keys = shape.external_keys(layer, pass.context_length);
      reads.commit_rows[static_cast<size_t>(layer)] += keys * shape.kv_heads_of(layer);
    }
  }
}

}  // namespace

void PassReads::move_to(ExternalReads& reads, const PassContext& context) {
  if (layers_.empty()) add_unseen_commits(reads, context);
  std::vector<at::Tensor> counts;
  for (const Layer& each : layers_) counts.push_back(each.keys_read);
  counts = on_host(counts);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].keys_read = counts[i];
    add_layer(reads, context, layers_[i]);
  }
  layers_.clear();
}

void PassReads::add_layer(ExternalReads& reads, const PassContext& context, const Layer& seen) {
  const LayerSizes& shape = reads.shape;
  const int64_t heads = shape.num_heads;
  const int64_t kv_heads = shape.kv_heads_of(seen.layer);
  const auto keys_of = [&](const SequencePass& pass) {
    return shape.external_keys(seen.layer, pass.context_length);
  };
  const auto layer = static_cast<size_t>(seen.layer);
  const size_t kv_base = static_cast<size_t>(seen.layer * shape.num_kv_heads);
  const size_t head_base = static_cast<size_t>(seen.layer * heads);
  const int64_t* keys_read =
      seen.keys_read.defined() ? seen.keys_read.const_data_ptr<int64_t>() : nullptr;
  const bool* reused = seen.reused.defined() ? seen.reused.const_data_ptr<bool>() : nullptr;
  const int64_t* scored =
      seen.rows_scored.defined() ? seen.rows_scored.const_data_ptr<int64_t>() : nullptr;
  for (const FusedCommit& commit : context.commits) {
    reads.commit_rows[layer] += keys_of(commit.pass) * kv_heads;
  }
  for (size_t s = 0; s < context.sequences.size(); ++s) {
    const SequencePass& pass = context.sequences[s];
    const int64_t length = keys_of(pass);
    if (pass.kind == PassKind::commit) {
      reads.commit_rows[layer] += length * kv_heads;
      continue;
    }
    const auto read_by = [&](int64_t kv_head) {
      return keys_read == nullptr ? length
                                  : keys_read[static_cast<int64_t>(s) * kv_heads + kv_head];
    };
    if (scored != nullptr) reads.choice_rows[layer] += scored[s] * kv_heads;
    for (int64_t k = 0; k < kv_heads; ++k) {
      reads.rows[kv_base + static_cast<size_t>(k)] += length;
      reads.rows_read[kv_base + static_cast<size_t>(k)] += read_by(k);
    }
    const int64_t block = std::ssize(pass.masked);
    const int64_t kept_rows =
        block - (seen.refreshed.defined()
                     ? seen.refreshed[static_cast<int64_t>(s)].sum().item<int64_t>()
                     : 0);
    for (int64_t h = 0; h < heads; ++h) {
      const size_t at = head_base + static_cast<size_t>(h);
      const bool skipped = reused != nullptr && reused[static_cast<int64_t>(s) * heads + h];
      reads.products[at] += length * block;
      reads.products_skipped[at] +=
          skipped ? length * kept_rows
                  : (length - read_by(shape.kv_head_of(seen.layer, h))) * block;
    }
  }
}

}  // namespace blockscope
