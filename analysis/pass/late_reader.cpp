#include "analysis/pass/late_reader.h"

#include <algorithm>

namespace blockscope {
namespace {

// Enough for a disk with many parallel requests. Many more made it slower.
constexpr std::size_t kBytesAhead = std::size_t{16} << 20U;

}  // namespace

void LateReader::expect(const std::vector<OwnedView>& values) {
  const std::scoped_lock lock(mutex_);
  for (const OwnedView& value : values) {
    if (value.late) expected_.push_back(value.late->place);
  }
}

void LateReader::read(const std::vector<OwnedView>& values) {
  for (const OwnedView& value : values) {
    if (value.late) read(*value.late);
  }
}

void LateReader::read(LateArray& array) {
  array.bytes = pool_.take(array.place.bytes);
  for (const LocatedValues& later : next(array.place.bytes)) later.prefetch();
  if (from_disk_ || !array.place.read_cached(array.bytes.span())) {
    from_disk_ = true;
    array.place.read(array.bytes.span());
  }
  drop_padding(array.bytes.data.get(), array.own);
}

std::vector<LocatedValues> LateReader::next(std::size_t bytes) {
  std::vector<LocatedValues> ask;
  const std::scoped_lock lock(mutex_);
  if (!from_disk_) {  // remove its entry, or the entry of another one that has been read
    if (!expected_.empty()) expected_.pop_front();
    return ask;
  }
  bytes_ahead_ -= std::min(bytes, bytes_ahead_);
  while (!expected_.empty() && bytes_ahead_ < kBytesAhead) {
    bytes_ahead_ += expected_.front().bytes;
    ask.push_back(expected_.front());
    expected_.pop_front();
  }
  return ask;
}

}  // namespace blockscope
