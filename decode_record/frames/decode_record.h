// The whole decoding trajectory of a sequence or a batch: the initial frame and one delta per
// denoising step. Frame t is the state before delta t, so there are num_deltas() + 1 frames.
// There is a keyframe every kKeyframeInterval deltas, so random access costs at most that many
// deltas, whatever the length of the record.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

#include "decode_record/frames/frame_delta.h"

namespace blockscope {

inline constexpr std::size_t kKeyframeInterval = 64;

class DecodeRecord {
 public:
  /// `block_length` of the run (1 or more).
  DecodeRecord(Frame initial_frame, std::size_t block_length);

  /// Applies `delta` to the last frame and stores it, compact and with explicit steps
  /// (resolve_delta). If it doesn't fit, throws FrameError and changes nothing.
  void append(const FrameDelta& delta);

  std::size_t block_length() const { return block_length_; }
  std::size_t num_deltas() const { return deltas_.size(); }
  std::size_t num_frames() const { return deltas_.size() + 1; }
  const Frame& initial_frame() const { return keyframes_.front(); }
  const Frame& last_frame() const { return last_; }

  /// Delta t, t in [0, num_deltas()). Throws FrameError when out of range.
  const FrameDelta& delta(std::size_t t) const;

  /// Frame t, t in [0, num_frames()). Throws FrameError when out of range.
  Frame frame(std::size_t t) const;

  /// One delta that turns frame `first` into frame `last` (first <= last).
  FrameDelta composed(std::size_t first, std::size_t last) const;

  /// Visits frame 0, 1, ..., each one delta after the one before (`for (const Frame& f : record)`).
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Frame;
    using difference_type = std::ptrdiff_t;
    using pointer = const Frame*;
    using reference = const Frame&;

    reference operator*() const { return frame_; }
    pointer operator->() const { return &frame_; }
    Iterator& operator++();
    std::size_t index() const { return index_; }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    friend class DecodeRecord;
    Iterator(const DecodeRecord* record, std::size_t index) : record_(record), index_(index) {}
    const DecodeRecord* record_;
    std::size_t index_;
    Frame frame_;
  };
  Iterator begin() const;
  Iterator end() const;

 private:
  std::size_t block_length_;
  std::vector<Frame> keyframes_;  // frame i * kKeyframeInterval
  std::vector<FrameDelta> deltas_;
  Frame last_;
};

}  // namespace blockscope
