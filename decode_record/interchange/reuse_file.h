// The calibration file (`reuse.json`). It says which query heads may reuse the external attention
// of an earlier denoising step (FlashBlock, arXiv 2602.05305, section 4.2: "reused only for heads
// whose estimated similarity exceeds a threshold gamma"). It also holds the measurements for this
// decision and the predicted savings and costs. Published format: docs/reuse.schema.json.
//
//   const ReuseFile file = read_reuse_file("reuse.json", {layers, heads, kv_heads, digest});
//   file.reuse.at(step)[layer][head];    // the mask, the only part that a runtime needs
//
// `blockscope calibrate` writes everything below. A file made by hand needs only `model` (layers,
// heads, digest) and `reuse`. Matrices are [layers][heads] of the whole model, one for each range
// of steps. Heads that the traces did not record have no similarity (NaN in memory, null in JSON)
// and never reuse.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "decode_record/files/output_file.h"
#include "decode_record/schema/reuse_masks.h"

namespace blockscope {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

template <typename T>
using RangeMatrices = std::vector<HeadMatrix<T>>;  ///< [ranges][layers][heads]; empty: none

struct ReuseModel {
  std::int64_t layers = 0;
  std::int64_t heads = 0;     ///< query heads, H
  std::int64_t kv_heads = 0;  ///< K, a divisor of heads; 0: not in the file
  std::string digest;         ///< of the checkpoint: 64 hexadecimal digits; wanted and empty: any
  /// [layers], where they differ: K of each layer; kv_heads is the largest.
  std::vector<std::int64_t> layer_kv_heads = {};

  std::int64_t kv_heads_of(std::size_t layer) const {
    return layer_kv_heads.empty() ? kv_heads : layer_kv_heads.at(layer);
  }
};

enum class ReuseGranularity : std::uint8_t {
  head,     ///< a head reuses iff its similarity > gamma
  kv_group  ///< a head reuses iff all query heads of its KV head have similarity > gamma
};
std::string_view to_string(ReuseGranularity granularity);  ///< "head", "kv-group"
/// Throws UsageError that lists the names.
ReuseGranularity parse_reuse_granularity(std::string_view name);

/// The earlier pair that `similarity` and `lse_drift` compare a step's exact pair with.
enum class ReuseReference : std::uint8_t {
  adjacent,  ///< that of the step before (the paper, Fig. 5)
  kept       ///< the kept pair, which a reusing step would take (the released code)
};
inline constexpr std::array<std::string_view, 2> kReuseReferences{"adjacent", "kept"};
constexpr std::string_view to_string(ReuseReference reference) {
  return kReuseReferences.at(static_cast<std::size_t>(reference));
}
/// Throws UsageError that lists the names; `where`: what gave the name, "--reference".
ReuseReference parse_reuse_reference(std::string_view where, std::string_view name);

/// A person's decision about one head. It holds for every gamma, range of steps and granularity.
struct ReusePin {
  std::int64_t layer = 0;
  std::int64_t head = 0;
  bool reuse = false;
  bool operator==(const ReusePin&) const = default;
};

/// A trace that the similarities come from.
struct ReuseTrace {
  std::string file;          ///< name without its folder
  std::string model_digest;  ///< as in ReuseModel; empty: not in the trace
  std::string prompts;       ///< SHA-256 over the prompt hashes of its sequences, in their order
  std::int64_t rows = 0;     ///< denoising steps that were used
  std::int64_t sequences = 0;
  std::int64_t blocks = 0;
};

/// What reuse at one gamma and tau saves and costs, over the denoising steps of the traces. The
/// pins of the file hold at every gamma.
struct ReusePoint {
  double gamma = 0.0;
  std::int64_t heads = 0;    ///< heads that reuse, of layers * heads; the sum over the ranges
  double byte_saving = 0.0;  ///< share of the prefix K and V bytes that is not read
  double flop_saving = 0.0;  ///< share of the external attention's FLOPs (4 B N D per query head)
  // One-step errors of the attention output. Relative L2 is sqrt(sum e^2 / sum ref^2); L1 is the
  // mean |e| per channel. NaN: unknown, or there is no such head or step.
  /// The error where reused: over the heads that reuse, at the steps at which the rule lets them.
  /// --max-error bounds it, and `verify` measures it under the same name. NaN in older files too.
  double relative_l2_reused = kNotMeasured;
  double mean_l1_reused = kNotMeasured;
  std::int64_t terms_reused = 0;  ///< outputs of a head at a position in these two values
  /// The error over all heads: every recorded head at every denoising step. A head or step that
  /// does not reuse adds only its output to the reference, and no error.
  double relative_l2_all_steps = kNotMeasured;
  /// In between: every recorded head, at the steps that the rule lets reuse.
  double relative_l2 = kNotMeasured;
  double mean_l1 = kNotMeasured;
  std::int64_t terms = 0;  ///< outputs of a head at a position in these two values
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
  std::int64_t reusing_steps = 0;       ///< of these, steps that the rule lets reuse
  std::int64_t external_keys = 0;       ///< keys read without reuse: sum of N over layers, KV heads
  std::int64_t external_keys_read = 0;  ///< with reuse
};

struct ReuseFile {
  ReuseModel model;
  ReuseMasks reuse;            ///< its ranges are those of all matrices
  std::vector<ReusePin> pins;  ///< by rising (layer, head), each head once; `reuse` includes them

  // Written by `calibrate`; matrices are empty if the file has none.
  std::vector<double> gamma;  ///< [ranges], in [-1, 1]; reuse iff similarity > gamma (strict) and
                              ///< lse_drift <= lse_bound; empty: none
  std::optional<double> lse_bound;  ///< of lse_drift, >= 0; unset: none
  ReuseReference reference = ReuseReference::adjacent;
  std::optional<std::int64_t> tau;  ///< tau of the prediction: reuse iff fewer tokens are counted
  ReuseCount tau_counts = ReuseCount::since_read;  ///< what tau counts; with a tau only. Version 1
                                                   ///< files count by step
  ReuseGranularity granularity = ReuseGranularity::head;
  std::string statistic;      ///< what `similarity` is a mean of, or that it holds ranks
  std::string computed_from;  ///< dataset of the trace
  std::vector<ReuseTrace> traces;
  RangeMatrices<double> similarity;          ///< mean, in [-1, 1]
  RangeMatrices<double> standard_deviation;  ///< of the step-pair means
  RangeMatrices<double> standard_error;      ///< of `similarity`
  RangeMatrices<double> p5;                  ///< 5th percentile of the step-pair means
  RangeMatrices<std::int64_t> count;         ///< step pairs
  RangeMatrices<double> lse_drift;           ///< mean |L_out - L_out of the reference|, >= 0
  std::vector<RowErrors> row_errors;         ///< [ranges]: with this mask, at tau; empty: none
  std::optional<ReusePrediction> predicted;
  std::vector<ReuseCurve> curves;  ///< by rising tau
};

/// `statistic` of files whose `similarity` ranks heads by measured effect, from 1 for the least.
inline constexpr std::string_view kEffectRank =
    "rank of the KL of the predictions when the head's external pair is frozen; 1: least";

/// The mask for a gamma: a head reuses if its similarity is strictly greater, never for NaN. Then
/// the pins are applied. The model's KV heads are only used for kv_group.
HeadMatrix<bool> reuse_mask(const HeadMatrix<double>& similarity, double gamma,
                            ReuseGranularity granularity, const ReuseModel& model,
                            const std::vector<ReusePin>& pins = {});

/// The similarities that gamma decides by: NaN (never reuse) where the drift is not within the
/// bound. No bound: all of them.
RangeMatrices<double> within_bound(const RangeMatrices<double>& similarity,
                                   const RangeMatrices<double>& lse_drift,
                                   const std::optional<double>& lse_bound);

/// The masks of a file with similarities for these gammas, one for each range.
ReuseMasks reuse_masks(const ReuseFile& file, const std::vector<double>& gammas);

/// Reads and checks everything: the format and its version, shapes, ranges, and that `reuse`
/// follows from `gamma`, `similarity`, `lse_drift` and `pins`. With `wanted`, refuses a file for
/// another model and names the field and both values (kv_heads only if both have it). Throws
/// CalibrationError: "reuse.json: reuse[3][1]: expected true or false, got 1".
ReuseFile read_reuse_file(const std::string& path, const std::optional<ReuseModel>& wanted = {});
/// The same for a text. Messages show `name` instead of the path.
ReuseFile parse_reuse_file(std::string_view text, const std::string& name,
                           const std::optional<ReuseModel>& wanted = {});

/// The rule of reuse, found in the same way in every command: what is asked for on the command
/// line, else the file's (a default ReuseFile: no file), else FlashBlock's: tau 2, since_read.
ReuseRule reuse_rule(const std::optional<std::int64_t>& tau, const std::optional<ReuseCount>& count,
                     const ReuseFile& file);

std::string to_json(const ReuseFile& file);
/// Checks the content as a reader would (CalibrationError), then writes and commits the file as a
/// whole.
void write_reuse_file(OutputFile& output, const ReuseFile& file);
/// The same for a path; throws what OutputFile throws.
void write_reuse_file(const std::string& path, const ReuseFile& file, bool force = false);

}  // namespace blockscope
