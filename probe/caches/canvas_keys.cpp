#include "probe/caches/canvas_keys.h"

#include <ATen/ATen.h>

#include "probe/model/device.h"

namespace blockscope {
namespace {

constexpr size_t kMostSpans = 8;  // more than these are written row by row

/// Entries [begin, begin + count) of a list of positions that are adjacent in the store.
struct Span {
  int64_t begin = 0, place = 0, count = 0;
};

}  // namespace

CanvasKeys::CanvasKeys(const CanvasShape& shape, at::ScalarType dtype, at::Device device)
    : shape_(shape), block_start_(shape.length - shape.block_length) {
  const std::vector<int64_t> sizes{1, shape.num_kv_heads, shape.length, shape.head_dim};
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    key_.push_back(at::zeros(sizes, at::dtype(dtype).device(device)));
    value_.push_back(at::zeros(sizes, at::dtype(dtype).device(device)));
  }
}

void CanvasKeys::begin_block(int64_t start) {
  if (start == block_start_) return;
  for (auto* side : {&key_, &value_}) {
    for (at::Tensor& stored : *side) {
      const at::Tensor by_position = ordered(stored);
      const int64_t end = start + shape_.block_length;
      stored.narrow(2, 0, start).copy_(by_position.narrow(2, 0, start));
      stored.narrow(2, start, shape_.length - end)
          .copy_(by_position.narrow(2, end, shape_.length - end));
      stored.narrow(2, shape_.length - shape_.block_length, shape_.block_length)
          .copy_(by_position.narrow(2, start, shape_.block_length));
    }
  }
  block_start_ = start;
  places_.reset();
}

int64_t CanvasKeys::place(int64_t position) const {
  if (position < block_start_) return position;
  const int64_t inside = position - block_start_;
  return inside < shape_.block_length ? shape_.length - shape_.block_length + inside
                                      : position - shape_.block_length;
}

void CanvasKeys::write_keys(int64_t layer, const std::vector<int64_t>& positions,
                            const at::Tensor& rows) {
  write(key_[static_cast<size_t>(layer)], positions, rows);
}

void CanvasKeys::write_values(int64_t layer, const std::vector<int64_t>& positions,
                              const at::Tensor& rows) {
  write(value_[static_cast<size_t>(layer)], positions, rows);
}

void CanvasKeys::write_chosen_keys(int64_t layer, const at::Tensor& positions,
                                   const at::Tensor& rows) {
  if (!places_.defined()) {
    std::vector<int64_t> places;
    for (int64_t p = 0; p < shape_.length; ++p) places.push_back(place(p));
    places_ = index_on(places, positions.device());
  }
  key_[static_cast<size_t>(layer)].index_copy_(2, places_.index_select(0, positions), rows);
}

void CanvasKeys::write(at::Tensor& stored, const std::vector<int64_t>& positions,
                       const at::Tensor& rows) {
  std::vector<Span> spans;
  std::vector<int64_t> places;
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t at = place(positions[i]);
    places.push_back(at);
    if (!spans.empty() && spans.back().place + spans.back().count == at) {
      ++spans.back().count;
    } else {
      spans.push_back({static_cast<int64_t>(i), at, 1});
    }
  }
  if (spans.size() > kMostSpans) {
    stored.index_copy_(2, kept_on(at::tensor(places, at::kLong), stored.device()), rows);
    return;
  }
  for (const Span& span : spans) {
    stored.narrow(2, span.place, span.count).copy_(rows.narrow(2, span.begin, span.count));
  }
}

at::Tensor CanvasKeys::value_rows(int64_t layer, const std::vector<int64_t>& positions) const {
  std::vector<int64_t> places;
  for (const int64_t position : positions) places.push_back(place(position));
  const at::Tensor& stored = value_[static_cast<size_t>(layer)];
  return stored.index_select(2, index_on(places, stored.device()));
}

at::Tensor CanvasKeys::external_key(int64_t layer) const {
  return all_keys(layer).narrow(2, 0, shape_.length - shape_.block_length);
}

at::Tensor CanvasKeys::external_value(int64_t layer) const {
  return all_values(layer).narrow(2, 0, shape_.length - shape_.block_length);
}

at::Tensor CanvasKeys::block_key(int64_t layer) const {
  return all_keys(layer).narrow(2, shape_.length - shape_.block_length, shape_.block_length);
}

at::Tensor CanvasKeys::block_value(int64_t layer) const {
  return all_values(layer).narrow(2, shape_.length - shape_.block_length, shape_.block_length);
}

at::Tensor CanvasKeys::ordered(const at::Tensor& stored) const {
  const int64_t outside = shape_.length - shape_.block_length;
  return at::cat({stored.narrow(2, 0, block_start_), stored.narrow(2, outside, shape_.block_length),
                  stored.narrow(2, block_start_, outside - block_start_)},
                 2);
}

at::Tensor CanvasKeys::ordered_key(int64_t layer) const {
  return ordered(all_keys(layer)).select(0, 0);
}

at::Tensor CanvasKeys::ordered_value(int64_t layer) const {
  return ordered(all_values(layer)).select(0, 0);
}

int64_t CanvasKeys::size_bytes(const CanvasShape& shape, at::ScalarType dtype) {
  return 2 * shape.num_layers * shape.num_kv_heads * shape.length * shape.head_dim *
         static_cast<int64_t>(at::elementSize(dtype));
}

}  // namespace blockscope
