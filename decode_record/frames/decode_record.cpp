#include "decode_record/frames/decode_record.h"

#include <fmt/format.h>

#include <algorithm>

namespace blockscope {
namespace {

void check_below(std::string_view what, std::size_t index, std::size_t limit) {
  if (index >= limit) {
    throw FrameError(
        fmt::format("decode record: expected a {} in [0, {}), got {}", what, limit, index));
  }
}

}  // namespace

DecodeRecord::DecodeRecord(Frame initial_frame, std::size_t block_length)
    : block_length_(block_length), last_(std::move(initial_frame)) {
  if (block_length == 0) throw FrameError("decode record: expected a block_length of 1 or more");
  last_.check();
  keyframes_.push_back(last_);
}

void DecodeRecord::append(const FrameDelta& delta) {
  FrameDelta resolved = resolve_delta(last_, delta);
  apply_delta(last_, resolved);
  deltas_.push_back(std::move(resolved));
  if (deltas_.size() % kKeyframeInterval == 0) keyframes_.push_back(last_);
}

const FrameDelta& DecodeRecord::delta(std::size_t t) const {
  check_below("delta", t, deltas_.size());
  return deltas_[t];
}

Frame DecodeRecord::frame(std::size_t t) const {
  check_below("frame", t, num_frames());
  const std::size_t keyframe = t / kKeyframeInterval;
  Frame result = keyframes_[keyframe];
  for (std::size_t i = keyframe * kKeyframeInterval; i < t; ++i) apply_delta(result, deltas_[i]);
  return result;
}

FrameDelta DecodeRecord::composed(std::size_t first, std::size_t last) const {
  check_below("frame", last, num_frames());
  check_below("first frame", first, last + 1);
  const Frame before = frame(first);
  FrameDelta result;
  result.num_sequences = before.num_sequences;
  result.active.clear();
  result.rows.clear();
  for (std::size_t t = first; t < last; ++t) result = compose(before, result, deltas_[t]);
  return result;
}

DecodeRecord::Iterator& DecodeRecord::Iterator::operator++() {
  if (index_ < record_->num_deltas()) apply_delta(frame_, record_->deltas_[index_]);
  ++index_;
  return *this;
}

DecodeRecord::Iterator DecodeRecord::begin() const {
  Iterator first(this, 0);
  first.frame_ = keyframes_.front();
  return first;
}

DecodeRecord::Iterator DecodeRecord::end() const { return {this, num_frames()}; }

}  // namespace blockscope
