#include "decode_record/compare/compare_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace blockscope {
namespace {

bool is_float(h5::Element element) { return element == h5::Element::f32 || h5::is_half(element); }

double float_at(const std::byte* bytes, h5::Element element, std::size_t i) {
  std::uint32_t word = 0;
  if (h5::is_half(element)) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * i, 2);
    return h5::widen(element, half);
  }
  std::memcpy(&word, bytes + 4 * i, 4);
  return std::bit_cast<float>(word);
}

std::int64_t integer_at(const std::byte* bytes, std::size_t size, std::size_t i) {
  std::int64_t value = 0;
  std::int32_t narrow = 0;
  if (size == 1) return static_cast<std::int64_t>(bytes[i]);
  if (size == 4) {
    std::memcpy(&narrow, bytes + 4 * i, 4);
    return narrow;
  }
  std::memcpy(&value, bytes + 8 * i, 8);
  return value;
}

/// The index of element `flat`, counted from the first element of row `first_row`.
std::vector<std::int64_t> index_of(std::int64_t first_row, std::size_t flat,
                                   std::span<const hsize_t> shape) {
  std::vector<std::int64_t> index(shape.size() + 1);
  for (std::size_t i = shape.size(); i-- > 0;) {
    index[i + 1] = static_cast<std::int64_t>(flat % shape[i]);
    flat /= shape[i];
  }
  index[0] = first_row + static_cast<std::int64_t>(flat);
  return index;
}

}  // namespace

void ValueComparison::compare(std::int64_t first_row, std::span<const hsize_t> shape,
                              std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::size_t count = a.size() / h5::size_of(in_a_);
  result_.elements += static_cast<std::int64_t>(count);
  if (in_a_ == in_b_ && std::ranges::equal(a, b)) return;
  for (std::size_t i = 0; i < count; ++i) {
    const bool same = is_float(in_a_)
                          ? equal_floats(float_at(a.data(), in_a_, i), float_at(b.data(), in_b_, i))
                          : equal_integers(integer_at(a.data(), h5::size_of(in_a_), i),
                                           integer_at(b.data(), h5::size_of(in_b_), i));
    if (same) continue;
    if (result_.different++ == 0) result_.at = index_of(first_row, i, shape);
  }
}

bool ValueComparison::equal_integers(std::int64_t a, std::int64_t b) {
  result_.largest =
      std::max(result_.largest, std::abs(static_cast<double>(a) - static_cast<double>(b)));
  return a == b;
}

bool ValueComparison::equal_floats(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  const double difference = std::abs(a - b);
  result_.largest = std::max(result_.largest, difference);
  return difference <= options_.absolute + options_.relative * std::abs(b);
}

}  // namespace blockscope
