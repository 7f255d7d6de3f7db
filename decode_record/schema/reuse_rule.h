// FlashBlock's rule of reuse (arXiv 2602.05305, section 4.2, and its released code), for policies,
// calibration, analysis and recorders.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

namespace blockscope {

/// What tau is compared with.
enum class ReuseCount : std::uint8_t {
  since_read,  ///< tokens decided since the block's last pass that read the prefix, that pass's own
               ///< included; a token decided as [MASK] counts at every pass (released code)
  step         ///< M: the block's inputs that differ from the step before (the paper's letter)
};
inline constexpr std::array<std::string_view, 2> kReuseCounts{"since_read", "step"};
constexpr std::string_view to_string(ReuseCount count) {
  return kReuseCounts.at(static_cast<std::size_t>(count));
}

/// Throws UsageError that lists the names; `where`: what gave the name, "--count".
ReuseCount parse_reuse_count(std::string_view where, std::string_view name);

/// What a pass reads that may not reuse, if it is not its block's first.
enum class ReuseRefresh : std::uint8_t {
  all,   ///< the prefix for all rows
  rows,  ///< the prefix for the rows whose input changed since they last read it; others keep
         ///< theirs
  near   ///< as `rows`, and for the masks next to those rows
};
inline constexpr std::array<std::string_view, 3> kReuseRefreshes{"all", "rows", "near"};
constexpr std::string_view to_string(ReuseRefresh refresh) {
  return kReuseRefreshes.at(static_cast<std::size_t>(refresh));
}

/// The rows [B] that read the prefix at a pass that may not reuse. `unread`: rows whose input
/// changed since they last read it; `masked`: rows whose input is a mask.
std::vector<bool> refreshed_rows(ReuseRefresh refresh, const std::vector<bool>& unread,
                                 const std::vector<bool>& masked);

struct ReuseRule {
  double tau = 2.0;
  ReuseCount count = ReuseCount::since_read;
  ReuseRefresh refresh = ReuseRefresh::all;
  auto operator<=>(const ReuseRule&) const = default;
};

/// Whether a pass may reuse the external pair of an earlier step: iff it is a denoising step, not
/// its block's first, and fewer than tau tokens were counted. `step`: step in the block, from 1; 0
/// for prefill and commit. `changed`: M. `since_read`: as ReuseCount says.
constexpr bool reuses_external(const ReuseRule& rule, std::int64_t step, std::int64_t changed,
                               std::int64_t since_read) {
  const std::int64_t counted = rule.count == ReuseCount::step ? changed : since_read;
  return step > 1 && static_cast<double>(counted) < rule.tau;
}

/// What became of a row of the block since the last step that read the prefix.
enum class RowKind : std::uint8_t {
  mask,    ///< a mask in this step's input
  known,   ///< a token that the step that read had in its input
  decided  ///< a token that a later step has for the first time
};
inline constexpr std::array<std::string_view, 3> kRowKinds{"masks", "known", "decided"};
/// Sums per row kind of /summary/kept_pair: rows, cosine, change of L_out, e^2, ref^2.
inline constexpr std::int64_t kKeptSums = 5;
/// Sums of /summary/step_pair: rows, cosine, change of L_out, e^2, |e|, ref^2, dot.
inline constexpr std::int64_t kPairSums = 7;

/// The tokens that a step decided, from the row after it: `since_read` of both rows, and the rows
/// that the earlier one read for (/steps/rows_read).
constexpr std::int64_t decided_between(std::int64_t since_read, std::int64_t since_read_before,
                                       std::int64_t rows_read_before) {
  return rows_read_before > 0 ? since_read : since_read - since_read_before;
}

/// The passes of one block under a rule that every pass follows, whatever the recorded run did.
class ReuseCounter {
 public:
  explicit ReuseCounter(ReuseRule rule) : rule_(rule) {}

  /// Whether the next denoising step reuses. `decided`: tokens that the step before decided, as
  /// decided_between(); 0 at step 1.
  bool reuses(std::int64_t step, std::int64_t changed, std::int64_t decided) {
    since_read_ = (step <= 1 || read_ ? 0 : since_read_) + (step <= 1 ? 0 : decided);
    read_ = !reuses_external(rule_, step, changed, since_read_);
    return !read_;
  }
  /// Tokens decided since the last pass that read, before the step of the last call.
  std::int64_t since_read() const { return since_read_; }

 private:
  ReuseRule rule_;
  std::int64_t since_read_ = 0;
  bool read_ = true;
};

/// The pair A_out, L_out that the steps of one block keep under a rule: how old it is, and what
/// became of the rows since it was computed.
class KeptCounter {
 public:
  explicit KeptCounter(ReuseRule rule) : counter_(rule) {}

  /// Whether the next denoising step reuses (ReuseCounter::reuses). Of its input, [B] each: which
  /// rows are masks, and which differ from the step before.
  bool reuses(std::int64_t step, std::int64_t changed, std::int64_t decided,
              const std::vector<bool>& masked, const std::vector<bool>& changed_rows);
  /// Steps since the pair was computed; 0: by the step of the last call.
  std::int64_t age() const { return age_; }
  /// RowKind of each row in the step of the last call: [B].
  const std::vector<std::uint8_t>& kinds() const { return kinds_; }

 private:
  ReuseCounter counter_;
  std::int64_t age_ = 0;
  std::int64_t read_step_ = 0;
  std::vector<bool> decided_;  // rows that differ from the step that read
  std::vector<std::uint8_t> kinds_;
};

}  // namespace blockscope
