// Rewrites traces: compress, repair what a kill left, merge the files of many ranks. The inputs are
// never changed; the output is whole or absent (temporary file, rename) and has the same schema.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace blockscope {

struct RepackOptions {
  int deflate = 0;      // 0: none, 1-9: shuffle + deflate of every growing dataset
  bool copy = false;    // several inputs: copy the large arrays too, instead of referring to them
  bool force = false;   // replace an existing output
  bool repair = false;  // accept traces whose run did not end; their cut sequences become `aborted`
  // Called with the bytes that were looked at (uncompressed) and their total, often; what it throws
  // ends the work without an output.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

/// With `repair`: what an input that was cut off or damaged has lost.
struct RepackLoss {
  std::string path;
  std::int64_t rows = 0;  ///< kept
  std::int64_t committed_rows = 0;
  std::int64_t sequences = 0;  ///< kept
  std::int64_t committed_sequences = 0;
  std::int64_t cut = 0;  ///< kept ones that lost rows or their text; they are marked aborted
  std::string why;       ///< what the first lost row lacks
};

struct RepackResult {
  std::vector<RepackLoss> lost;  ///< empty: every committed row is here
  std::int64_t rows = 0;
  std::int64_t sequences = 0;
  std::int64_t aborted = 0;  // sequences marked as cut
  std::int64_t bytes_before = 0;
  std::int64_t bytes_after = 0;
  bool is_virtual = false;  // the output shows arrays that stay in the inputs
};

/// One input: the same trace, cut to its committed rows. With `repair` also to those from the first
/// on whose data lies in the file, in every dataset: what is behind the end of a file that was cut
/// off is no row. Several: their sequences and rows one file
/// after the other, all indices shifted. Columns are written anew; the large arrays stay where they
/// are, and the output refers to the inputs by their path from its own folder, unless they must be
/// rewritten: with `deflate`, `repair` or `copy`, or when an input is itself merged. Inputs must
/// agree in everything that fixes a dataset's shape or meaning (layout, /model/json, vocabulary).
/// `/run/json` becomes that of the first input with a member "repacked" that lists inputs and
/// options. `/run/complete` is 1 only if it was in all. Throws UsageError (output exists, inputs
/// disagree, unfinished input without `repair`) or TraceError.
RepackResult repack_traces(const std::vector<std::string>& inputs, const std::string& output,
                           const RepackOptions& options);

}  // namespace blockscope
