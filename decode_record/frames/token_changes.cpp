#include "decode_record/frames/token_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

/// A position of the part while a step changes it.
struct HeldCell {
  std::int64_t token = -1;
  std::int64_t held = -1;  // the token before a transfer
  float confidence = kUntouchedConfidence;
  bool written = false;
};

ChangeKind kind_of(const HeldCell& cell, std::int64_t mask) {
  if (cell.held == mask) return ChangeKind::decided;
  return cell.token == mask ? ChangeKind::taken_back : ChangeKind::edited;
}

std::size_t source_of(const std::vector<std::int64_t>& source,
                      const std::vector<std::int64_t>& index, std::size_t i) {
  return static_cast<std::size_t>(source.empty() ? index[i] : source[i]);
}

HeldCell decoded(const SequenceDelta& delta, std::size_t source, std::int64_t held) {
  if (source >= delta.decoded_tokens.size()) {
    throw FrameError(fmt::format("frame delta: expected a token for each change, got {} tokens",
                                 delta.decoded_tokens.size()));
  }
  HeldCell cell{delta.decoded_tokens[source], held, kUntouchedConfidence, true};
  if (source < delta.confidence.size()) cell.confidence = delta.confidence[source];
  return cell;
}

class Part {
 public:
  Part(const std::vector<std::int64_t>& tokens, std::int64_t origin, std::int64_t mask)
      : origin_(origin), mask_(mask) {
    for (const std::int64_t token : tokens) cells_.push_back({token});
  }

  void transfer(const SequenceDelta& delta, StepChanges& result) {
    for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
      const std::int64_t at = delta.transfer_index[i] - origin_;
      if (at < 0 || at >= std::ssize(cells_)) continue;
      HeldCell& cell = cells_[static_cast<std::size_t>(at)];
      cell =
          decoded(delta, source_of(delta.transfer_src_index, delta.transfer_index, i), cell.token);
      if (leaves_undecided(delta, i)) cell.token = mask_;  // noise counts as a mask
      if (cell.held == cell.token) continue;
      const ChangeKind kind = kind_of(cell, mask_);
      (kind == ChangeKind::decided  ? result.decided
       : kind == ChangeKind::edited ? result.edited
                                    : result.taken_back) += 1;
    }
  }

  /// `end`: where the block ends, counted in the part.
  void move(const SequenceDelta& delta, std::int64_t end, StepChanges& result) {
    const std::int64_t filled_up = insert(delta, end, result);
    std::vector<std::int64_t> gone;
    for (const std::int64_t position : delta.delete_index) {
      if (position >= origin_ && position < origin_ + std::ssize(cells_)) {
        gone.push_back(position - origin_);
      }
    }
    std::ranges::sort(gone);
    std::int64_t pushed_out = 0;  // the deletions at the end of the grown block
    std::int64_t last = end + result.inserted - 1;
    for (auto at = gone.rbegin(); filled_up == 0 && at != gone.rend(); ++at, --last) {
      if (*at != last || pushed_out == result.inserted) break;
      ++pushed_out;
    }
    result.deleted = std::ssize(gone) - pushed_out;
    for (auto at = gone.rbegin(); at != gone.rend(); ++at) cells_.erase(cells_.begin() + *at);
  }

  const std::vector<HeldCell>& cells() const { return cells_; }

 private:
  /// Returns the number of insertions at the block's end.
  std::int64_t insert(const SequenceDelta& delta, std::int64_t end, StepChanges& result) {
    std::vector<std::size_t> order(delta.insert_index.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return delta.insert_index[i]; });
    const std::int64_t size = std::ssize(cells_);
    std::int64_t filled_up = 0;
    for (auto i = order.rbegin(); i != order.rend(); ++i) {  // so that places before it stay
      const std::int64_t at = delta.insert_index[*i] - origin_;
      if (at < 0 || at > size) continue;
      const std::size_t source = source_of(delta.insert_src_index, delta.insert_index, *i);
      cells_.insert(cells_.begin() + at, decoded(delta, source, mask_));
      (at == end ? filled_up : result.inserted) += 1;
    }
    return filled_up;
  }

  std::vector<HeldCell> cells_;
  std::int64_t origin_;
  std::int64_t mask_;
};

void add_change(StepChanges& result, const HeldCell& cell, std::int64_t position,
                std::int64_t before, std::int64_t mask) {
  TokenChange change{position, ChangeKind::moved, before, cell.token, cell.confidence};
  if (cell.written && cell.held != cell.token) {
    change.before = cell.held;
    change.kind = kind_of(cell, mask);
  } else if (before == cell.token) {
    return;
  }
  result.changes.push_back(change);
}

}  // namespace

std::vector<std::int64_t> tokens_to_follow(const Frame& frame, std::int64_t mask_token_id) {
  std::vector<std::int64_t> tokens = frame.generated_tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (frame.undecided(i)) tokens[i] = mask_token_id;
  }
  return tokens;
}

StepChanges follow_delta(std::vector<std::int64_t>& tokens, std::int64_t origin,
                         const SequenceDelta& delta, std::int64_t mask_token_id,
                         std::int64_t block_end) {
  StepChanges result;
  Part part(tokens, origin, mask_token_id);
  part.transfer(delta, result);
  if (!delta.insert_index.empty() || !delta.delete_index.empty()) {
    part.move(delta, block_end - origin, result);
  }
  const auto is_token = [&](std::int64_t token) { return token != mask_token_id; };
  result.net_tokens -= std::ranges::count_if(tokens, is_token);
  tokens.resize(part.cells().size(), mask_token_id);
  for (std::size_t p = 0; p < tokens.size(); ++p) {
    const HeldCell& cell = part.cells()[p];
    add_change(result, cell, origin + static_cast<std::int64_t>(p), tokens[p], mask_token_id);
    tokens[p] = cell.token;
  }
  result.net_tokens += std::ranges::count_if(tokens, is_token);
  return result;
}

}  // namespace blockscope
