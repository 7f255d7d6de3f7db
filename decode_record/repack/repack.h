// Rewrites traces: compresses them, repairs what a kill left, merges the files of many ranks. The
// inputs are never changed. The output is whole or absent (temporary file, rename) and has the same
// schema.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace blockscope {

struct RepackOptions {
  int deflate = 0;      // 0: none, 1-9: shuffle + deflate of every growing dataset
  bool copy = false;    // with several inputs: copy the large arrays instead of referring to them
  bool force = false;   // replace an existing output
  bool repair = false;  // accept unfinished traces; their cut sequences become `aborted`
  // Called often, with the bytes processed so far (uncompressed) and their total. If it throws, the
  // work ends without an output.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

/// With `repair`: what a cut or damaged input has lost.
struct RepackLoss {
  std::string path;
  std::int64_t rows = 0;  ///< kept
  std::int64_t committed_rows = 0;
  std::int64_t sequences = 0;  ///< kept
  std::int64_t committed_sequences = 0;
  std::int64_t cut = 0;  ///< kept sequences that lost rows or text; they are marked aborted
  std::string why;       ///< what the first lost row lacks
};

struct RepackResult {
  std::vector<RepackLoss> lost;  ///< empty: every committed row was kept
  std::int64_t rows = 0;
  std::int64_t sequences = 0;
  std::int64_t aborted = 0;  // sequences marked as cut
  std::int64_t bytes_before = 0;
  std::int64_t bytes_after = 0;
  bool is_virtual = false;  // the output shows arrays that stay in the inputs
};

/// One input: writes the same trace, cut to its committed rows. With `repair`: only the rows, from
/// the first on, that are whole in every dataset.
///
/// Several inputs: writes their sequences and rows one file after the other, with all indices
/// shifted. Columns are copied. The large arrays stay in the inputs, and the output refers to them
/// by their paths from its own folder. With `deflate`, `repair` or `copy`, or if an input is itself
/// merged, the large arrays are copied too. Inputs must agree in everything that fixes a dataset's
/// shape or meaning (layout, /model/json, vocabulary).
///
/// `/run/json` is that of the first input, with a member "repacked" that lists inputs and options.
/// `/run/complete` is 1 only if it was 1 in all inputs. Throws UsageError (output exists, inputs
/// disagree, unfinished input without `repair`) or TraceError.
RepackResult repack_traces(const std::vector<std::string>& inputs, const std::string& output,
                           const RepackOptions& options);

}  // namespace blockscope
