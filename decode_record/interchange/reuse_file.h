// The calibration file (`reuse.json`): which query heads may reuse the external attention of an
// earlier denoising step (FlashBlock, arXiv 2602.05305, section 4.2: "reused only for heads whose
// estimated similarity exceeds a threshold gamma"), what was measured to decide it, and what it
// should save and cost. Published format: docs/reuse.schema.json.
//
//   const ReuseFile file = read_reuse_file("reuse.json", {layers, heads, kv_heads, digest});
//   file.reuse[layer][head];             // the mask, all that a runtime needs
//
// `blockscope calibrate` writes everything below; a file made by hand needs only `model` (layers,
// heads, digest) and `reuse`. Matrices are [layers][heads] of the whole model, also of heads that
// the traces did not record: those have no similarity (NaN here, null in JSON) and never reuse.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decode_record/files/output_file.h"

namespace blockscope {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

template <typename T>
using HeadMatrix = std::vector<std::vector<T>>;  ///< [layers][heads]

struct ReuseModel {
  std::int64_t layers = 0;
  std::int64_t heads = 0;     ///< query heads, H
  std::int64_t kv_heads = 0;  ///< K, a divisor of heads; 0: the file doesn't say
  std::string digest;         ///< of the checkpoint: 64 hexadecimal digits
};

enum class ReuseGranularity : std::uint8_t {
  head,     ///< a head reuses iff its similarity > gamma
  kv_group  ///< a head reuses iff all query heads of its KV head have similarity > gamma
};
std::string_view to_string(ReuseGranularity granularity);  ///< "head", "kv-group"
/// Throws UsageError that lists the names.
ReuseGranularity parse_reuse_granularity(std::string_view name);

/// A person's decision about one head, kept against every gamma and granularity.
struct ReusePin {
  std::int64_t layer = 0;
  std::int64_t head = 0;
  bool reuse = false;
  bool operator==(const ReusePin&) const = default;
};

/// A trace that the similarities come from.
struct ReuseTrace {
  std::string file;          ///< name without its folder
  std::string model_digest;  ///< as in ReuseModel; empty: the trace doesn't say
  std::string prompts;       ///< SHA-256 over the prompt hashes of its sequences, in their order
  std::int64_t rows = 0;     ///< denoising steps looked at
  std::int64_t sequences = 0;
  std::int64_t blocks = 0;
};

/// What reuse at one gamma and tau saves and costs, over the denoising steps of the traces. The
/// pins of the file hold at every gamma.
struct ReusePoint {
  double gamma = 0.0;
  std::int64_t heads = 0;    ///< heads that reuse, of layers * heads
  double byte_saving = 0.0;  ///< share of the prefix K and V bytes that is not read
  double flop_saving = 0.0;  ///< share of the external attention's FLOPs (4 B N D per query head)
  // One-step errors of the attention output; relative L2 is sqrt(sum e^2 / sum ref^2), L1 the mean
  // |e| per channel. NaN: not known, or there is no such head or step.
  /// The error where reused: the heads that reuse, at the steps that the rule lets reuse. What
  /// --max-error bounds, and what `verify` measures by the same name. NaN also in files written
  /// before it existed.
  double relative_l2_reused = kNotMeasured;
  double mean_l1_reused = kNotMeasured;
  std::int64_t terms_reused = 0;  ///< outputs of a head at a position behind these two
  /// The error over all heads: every recorded head at every denoising step; a head or step that
  /// does not reuse adds nothing to the error and its output to the reference.
  double relative_l2_all_steps = kNotMeasured;
  /// In between: every recorded head, at the steps that the rule lets reuse.
  double relative_l2 = kNotMeasured;
  double mean_l1 = kNotMeasured;
  std::int64_t terms = 0;  ///< outputs of a head at a position behind these two
};

/// The points of one tau by rising gamma.
struct ReuseCurve {
  std::int64_t tau = 0;
  std::vector<ReusePoint> points;
};

/// The chosen point in absolute numbers.
struct ReusePrediction {
  ReusePoint point;
  std::int64_t steps = 0;               ///< denoising steps with a prefix
  std::int64_t reusing_steps = 0;       ///< of them: step > 1 and M < tau
  std::int64_t external_keys = 0;       ///< keys read without reuse: sum of N over layers, KV heads
  std::int64_t external_keys_read = 0;  ///< with reuse
};

struct ReuseFile {
  ReuseModel model;
  HeadMatrix<bool> reuse;
  std::vector<ReusePin> pins;  ///< by rising (layer, head), each head once; `reuse` has them in it

  // What `calibrate` adds; matrices are empty when the file has none.
  std::optional<double> gamma;      ///< in [-1, 1]; reuse iff similarity > gamma (strict)
  std::optional<std::int64_t> tau;  ///< that the prediction is for: reuse iff M < tau
  ReuseGranularity granularity = ReuseGranularity::head;
  std::string statistic;      ///< what `similarity` is a mean of
  std::string computed_from;  ///< dataset of the trace
  std::vector<ReuseTrace> traces;
  HeadMatrix<double> similarity;          ///< mean, in [-1, 1]
  HeadMatrix<double> standard_deviation;  ///< of the step-pair means
  HeadMatrix<double> standard_error;      ///< of `similarity`
  HeadMatrix<double> p5;                  ///< 5th percentile of the step-pair means
  HeadMatrix<std::int64_t> count;         ///< step pairs
  std::optional<ReusePrediction> predicted;
  std::vector<ReuseCurve> curves;  ///< by rising tau
};

/// The mask that gamma makes of similarities: strictly greater, NaN never; then the pins.
/// `kv_heads` matters to kv_group only.
HeadMatrix<bool> reuse_mask(const HeadMatrix<double>& similarity, double gamma,
                            ReuseGranularity granularity, std::int64_t kv_heads,
                            const std::vector<ReusePin>& pins = {});

/// Reads and checks everything: the format and its version, shapes, ranges, and that `reuse` is
/// what `gamma`, `similarity` and `pins` say. With `wanted`, a file for another model is refused,
/// naming the field and both values (kv_heads only where both know it). Throws CalibrationError:
/// "reuse.json: reuse[3][1]: expected true or false, got 1".
ReuseFile read_reuse_file(const std::string& path, const std::optional<ReuseModel>& wanted = {});
/// The same of a text; `name` stands in the messages for the path.
ReuseFile parse_reuse_file(std::string_view text, const std::string& name,
                           const std::optional<ReuseModel>& wanted = {});

/// The tau to reuse by, the same in every command: `asked` on the command line, else the file's,
/// else FlashBlock's 2.
std::int64_t reuse_tau(const std::optional<std::int64_t>& asked,
                       const std::optional<std::int64_t>& of_file);

std::string to_json(const ReuseFile& file);
/// Checks the content as a reader would (CalibrationError), then writes and commits: whole or not
/// at all.
void write_reuse_file(OutputFile& output, const ReuseFile& file);
/// The same to a name; throws what OutputFile throws.
void write_reuse_file(const std::string& path, const ReuseFile& file, bool force = false);

}  // namespace blockscope
