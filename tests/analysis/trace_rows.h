// Turns steps of a SequenceModel into the datasets of a row. Internal to make_trace.
#pragma once

#include <map>
#include <random>
#include <vector>

#include "decode_record/write/trace_writer.h"
#include "tests/analysis/trace_model.h"

namespace blockscope::testing {

/// Values of a row, [layer, ...] in the order of the file for datasets with layers.
using RowValues = std::map<Field, Values>;

/// Follows a block: the datasets of each of its steps.
class RowMaker {
 public:
  RowMaker(const TraceMakerOptions& options, const TraceMeta& meta) : o_(options), meta_(meta) {}
  void begin_block() { number_ = 0; }
  /// Tokens decided since the last read under the trace's policy, before the last step.
  std::int64_t since_read() const {
    return o_.policy == "flashblock" ? counts_.at(o_.tau).since_read : changed_;
  }
  /// Whether that step read the prefix.
  bool read() const { return o_.policy != "flashblock" || !reuses(o_.tau); }
  /// `masked`: [B]; M = `changed`. Everything the trace's level has.
  RowValues next(const ModelStep& step, std::int64_t context_length, std::int64_t changed,
                 const std::vector<bool>& masked);

 private:
  void put_attention(std::size_t layer, RowValues& row);
  void put_sets(std::size_t layer, RowValues& row) const;
  void put_summary(std::size_t layer, RowValues& row) const;
  void put_reuse_error(std::size_t layer, RowValues& row) const;
  void put_predictions(const std::vector<bool>& masked, RowValues& row) const;
  /// Appends the recorded heads of [H, ...].
  void append_heads(Values& to, const Values& from, const std::vector<std::int64_t>& heads,
                    std::int64_t all) const;
  /// Appends the recorded heads of [heads, B, D] with the padding of the file: the layer has `all`
  /// heads and its own D.
  void append_vectors(Values& to, const Values& from, const std::vector<std::int64_t>& heads,
                      std::size_t layer, std::int64_t all) const;
  std::int64_t head_dim(std::size_t layer) const {
    return meta_.head_dim_of(static_cast<std::int64_t>(layer));
  }
  bool reuses(double tau) const { return counts_.at(tau).reuses; }
  Values merged(std::size_t layer, const LayerStep& internal, const LayerStep& external) const;

  const TraceMakerOptions& o_;
  const TraceMeta& meta_;
  std::int64_t number_ = 0;  // step in its block
  std::int64_t context_ = 0, changed_ = 0;
  ModelStep now_, previous_, first_, used_;
  std::map<double, ModelStep> source_;
  struct Count {
    std::int64_t since_read = 0;
    bool reuses = false;
  };
  std::map<double, Count> counts_;  // by tau
};

/// The row's slices in the file's element types, with NaN, infinities and zero vectors as options
/// ask for.
std::vector<ArraySlice> to_slices(const RowValues& row, const TraceMeta& meta,
                                  const TraceMakerOptions& options, std::mt19937_64& random);

/// Values in the file's element type.
Buffer to_file_type(const Values& values, const DatasetSpec& spec, const TraceMeta& meta);

}  // namespace blockscope::testing
