// How much of the prefix the denoising steps read, compared with reading all of it. Keys are read
// for attention, and to choose the keys for attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "decode_record/schema/layer_sizes.h"

namespace blockscope {

struct AttentionView;
struct PassContext;

/// Sums over sequences and denoising steps. A key row is one external key (and its value) of one KV
/// head: 2 * D elements. Where layers differ in D, counts are of rows, and shares are of bytes.
struct ExternalReads {
  explicit ExternalReads(const LayerSizes& sizes = {});

  LayerSizes shape;
  std::vector<int64_t> rows;       // [L * K] key rows that exact attention reads; 0 for KV heads
                                   // that a layer lacks
  std::vector<int64_t> rows_read;  // [L * K] key rows read for attention: 0 at a step where all
                                   // G heads reuse; the set's rows where a set is read
  std::vector<int64_t> products;   // [L * H] query-key products over the prefix
  std::vector<int64_t> products_skipped;  // [L * H] those that were not computed
  std::vector<int64_t> commit_rows;       // [L] key rows of the commit passes, exact under every
                                          // policy
  /// [L] rows of D elements (half a key row) that all KV heads read in addition, to choose sets and
  /// to keep residuals: AttentionParts::rows_scored.
  std::vector<int64_t> choice_rows;

  bool operator==(const ExternalReads&) const = default;
  ExternalReads& operator+=(const ExternalReads& other);

  int64_t total_rows() const;
  int64_t total_read() const;
  int64_t total_commits() const;  // key rows
  int64_t total_choice() const;   // rows of D elements
  int64_t total_products() const;
  int64_t total_products_skipped() const;
  /// A sum of one of the vectors above for bytes and FLOPs, which follow D: a row of a layer with
  /// half of the largest D is half a row.
  double in_largest_rows(const std::vector<int64_t>& counts) const;
  /// Share of the key rows' bytes that denoising steps did not read; 0 without rows.
  double saving() const;
  /// Share of the query-key products that denoising steps did not compute; 0 without products.
  double products_saving() const;
  /// saving() minus the share that choosing read; below 0 if choosing reads more than sets save.
  double saving_with_choice() const;
  /// saving() with the commit passes, which read everything, in the denominator.
  double saving_with_commits() const;
  /// FLOPs of QK^T and PV over external keys, 4 * D a product, and those that were not spent.
  /// head_dim: the largest D.
  double flops(int64_t head_dim) const;
  double flops_avoided(int64_t head_dim) const;
};

/// What the attention of a pass really read: AttentionParts::keys_read, `reused` and `rows_scored`
/// of each layer. A device counts keys_read itself, because waiting for it between the layers would
/// stall the device and lengthen the pass.
class PassReads {
 public:
  void add(const AttentionView& view);
  /// Adds the reads of all layers since the last call, from the pass with this context. Waits for a
  /// device once. A commit whose layers were not shown (of a canvas) reads its whole prefix.
  void move_to(ExternalReads& reads, const PassContext& context);

 private:
  struct Layer {
    int64_t layer;
    at::Tensor keys_read;    // [S, K] int64; undefined: every key was read
    at::Tensor reused;       // [S, H] bool, on the host; undefined: no head reused
    at::Tensor refreshed;    // [S, T] bool, on the host; undefined: no row of these heads read
    at::Tensor rows_scored;  // [S] int64, on the host; undefined: none
  };
  static void add_layer(ExternalReads& reads, const PassContext& context, const Layer& seen);

  std::vector<Layer> layers_;
};

}  // namespace blockscope
