// How much of the prefix the denoising steps read, against reading all of it: counted from what the
// runtime did, and predicted from FlashBlock's rule and the M sequence of a dense run. Under replay
// of that run the two are equal, count by count.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

struct AttentionView;

/// Heads that may reuse, [num_layers][num_heads].
using ReuseMask = std::vector<std::vector<bool>>;

struct ReadShape {
  int64_t num_layers = 0;
  int64_t num_heads = 0;     // H, query heads
  int64_t num_kv_heads = 0;  // K; query head h reads KV head h / (H / K)

  bool operator==(const ReadShape&) const = default;
};

/// Sums over sequences and denoising steps. A key row is one external key (and its value) of one KV
/// head: 2 * D elements.
struct ExternalReads {
  explicit ExternalReads(const ReadShape& read_shape = {});

  ReadShape shape;
  std::vector<int64_t> rows;          // [L * K] key rows that exact attention reads
  std::vector<int64_t> rows_read;     // [L * K] key rows read: 0 at a step where all G heads reuse
  std::vector<int64_t> head_rows;     // [L * H] key rows times the query heads that use them
  std::vector<int64_t> head_skipped;  // [L * H] those whose query head reused instead
  int64_t commit_rows = 0;            // key rows of the commit passes, exact under every policy

  bool operator==(const ExternalReads&) const = default;
  ExternalReads& operator+=(const ExternalReads& other);

  int64_t total_rows() const;
  int64_t total_read() const;
  /// Share of the key rows (and so of their bytes) that was not read, in the denoising steps; 0
  /// without any row.
  double saving() const;
  /// The same with the commit passes, which read everything, in the denominator.
  double saving_with_commits() const;
  /// FLOPs of QK^T and PV over external keys that a query head did not spend: 4 * B * N * D each.
  double flops(int64_t block_length, int64_t head_dim) const;
  double flops_avoided(int64_t block_length, int64_t head_dim) const;
};

/// One denoising or commit pass as one sequence saw it.
struct PassRow {
  bool commit = false;
  int64_t block = 0;           // absolute
  int64_t step = 0;            // from 1; 0 for a commit
  int64_t context_length = 0;  // N
  int64_t changed = 0;         // M
};

/// Adds what the attention of one layer really read: AttentionParts::keys_read and `reused`.
void add_measured(const AttentionView& view, ExternalReads& reads);

/// The rule applied to the rows of a dense run: at a denoising step that is not its block's first,
/// with M < tau, every head of the mask reuses; a KV head's prefix is read unless all of its query
/// heads do (FlashBlock, arXiv 2602.05305, section 4.2).
ExternalReads predicted_reads(const std::vector<PassRow>& rows, int64_t tau, const ReuseMask& mask,
                              const ReadShape& shape);

}  // namespace blockscope
