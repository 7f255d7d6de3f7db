// See compare_traces.h.
#include "decode_record/compare_traces.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "decode_record/raw_trace.h"

namespace blockscope {

namespace {

constexpr std::size_t kSlabBytes = 4U << 20U;

bool is_float(h5::Element element) {
  return element == h5::Element::f32 || element == h5::Element::bf16;
}

double float_at(const std::byte* bytes, h5::Element element, std::size_t i) {
  std::uint32_t word = 0;
  if (element == h5::Element::bf16) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * i, 2);
    word = std::uint32_t{half} << 16U;
  } else {
    std::memcpy(&word, bytes + 4 * i, 4);
  }
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

/// One dataset, slab by slab.
class Comparison {
 public:
  Comparison(const RawTrace& a, const RawTrace& b, const CompareOptions& options,
             DatasetDifference& result)
      : a_(a), b_(b), options_(options), result_(result) {}

  void run(Field field) {
    const std::vector<hsize_t> shape = a_.shape(field);
    const std::int64_t count = shape.empty() ? 1 : static_cast<std::int64_t>(shape[0]);
    const std::size_t row = std::max<std::size_t>(a_.row_bytes(field), 1);
    const auto slab = static_cast<std::int64_t>(std::max<std::size_t>(kSlabBytes / row, 1));
    // The same float in two element types (bf16 and f32) is compared by value.
    for (std::int64_t first = 0; first < count; first += slab) {
      const std::int64_t part = std::min(slab, count - first);
      compare(field, first, a_.read(field, first, part), b_.read(field, first, part), shape);
    }
  }

 private:
  void compare(Field field, std::int64_t first, const std::vector<std::byte>& a,
               const std::vector<std::byte>& b, const std::vector<hsize_t>& shape) {
    const h5::Element in_a = a_.dataset(field).element;
    const h5::Element in_b = b_.dataset(field).element;
    const std::size_t count = a.size() / h5::size_of(in_a);
    result_.elements += static_cast<std::int64_t>(count);
    if (in_a == in_b && a == b) return;
    const std::size_t row = a_.row_bytes(field) / h5::size_of(in_a);
    for (std::size_t i = 0; i < count; ++i) {
      const bool same = is_float(in_a)
                            ? equal_floats(float_at(a.data(), in_a, i), float_at(b.data(), in_b, i))
                            : equal_integers(integer_at(a.data(), h5::size_of(in_a), i),
                                             integer_at(b.data(), h5::size_of(in_b), i));
      if (same) continue;
      if (result_.different++ == 0) {
        result_.at = index_of(static_cast<std::size_t>(first) * row + i, shape);
      }
    }
  }

  bool equal_integers(std::int64_t a, std::int64_t b) {
    result_.largest =
        std::max(result_.largest, std::abs(static_cast<double>(a) - static_cast<double>(b)));
    return a == b;
  }

  bool equal_floats(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    if (std::isinf(a) || std::isinf(b)) return a == b;
    const double difference = std::abs(a - b);
    result_.largest = std::max(result_.largest, difference);
    return difference <= options_.absolute + options_.relative * std::abs(b);
  }

  static std::vector<std::int64_t> index_of(std::size_t flat, const std::vector<hsize_t>& shape) {
    std::vector<std::int64_t> index(shape.size());
    for (std::size_t i = shape.size(); i-- > 0;) {
      index[i] = static_cast<std::int64_t>(flat % shape[i]);
      flat /= shape[i];
    }
    return index;
  }

  const RawTrace& a_;
  const RawTrace& b_;
  const CompareOptions& options_;
  DatasetDifference& result_;
};

bool left_out(Field field, const CompareOptions& options) {
  switch (field) {
    case Field::model_json:
    case Field::run_json:
    case Field::run_complete:
    case Field::token_offset:
    case Field::token_bytes:
    // Positions in a byte heap whose order depends on when sequences ended; texts are compared by
    // their content below.
    case Field::sequence_text_start:
    case Field::sequence_name_start:
    case Field::sequence_answer_start:
    case Field::sequence_metric_start:
    case Field::sequence_bytes:
      return true;
    case Field::step_pass_time_ns:
      return options.ignore_timing;
    default:
      return false;
  }
}

std::vector<std::byte> heap_text(const RawTrace& trace, Field start, Field length,
                                 std::int64_t sequence) {
  const std::int64_t at = trace.read_integers(start, sequence, 1).front();
  const std::int64_t size = trace.read_integers(length, sequence, 1).front();
  const std::int64_t limit = trace.length(Axis::text_byte);
  if (at < 0 || size < 0 || at > limit || size > limit - at) return {};
  return trace.read(Field::sequence_bytes, at, size);
}

/// Names, answers, metrics and texts of the sequences, by content.
DatasetDifference compare_texts(const RawTrace& a, const RawTrace& b) {
  DatasetDifference result;
  result.path = spec_of(Field::sequence_bytes).path;
  const std::int64_t count = a.length(Axis::sequence);
  if (count != b.length(Axis::sequence)) {
    result.problem = "different number of sequences";
    return result;
  }
  constexpr std::pair<Field, Field> kTexts[] = {
      {Field::sequence_name_start, Field::sequence_name_length},
      {Field::sequence_answer_start, Field::sequence_answer_length},
      {Field::sequence_metric_start, Field::sequence_metric_length},
      {Field::sequence_text_start, Field::sequence_text_length}};
  for (std::int64_t sequence = 0; sequence < count; ++sequence) {
    for (const auto& [start, length] : kTexts) {
      ++result.elements;
      if (heap_text(a, start, length, sequence) == heap_text(b, start, length, sequence)) continue;
      if (result.different++ == 0) result.at = {sequence};
    }
  }
  return result;
}

}  // namespace

TraceDifference compare_traces(const std::string& a, const std::string& b,
                               const CompareOptions& options) {
  const RawTrace first(a);
  const RawTrace second(b);
  TraceDifference result;
  for (const DatasetSpec& spec : kDatasets) {
    const bool in_first = first.has(spec.field);
    const bool in_second = second.has(spec.field);
    if (left_out(spec.field, options) || (!in_first && !in_second)) continue;
    DatasetDifference difference;
    difference.path = spec.path;
    if (in_first != in_second) {
      difference.problem = fmt::format("only in the {} trace", in_first ? "first" : "second");
    } else if (first.shape(spec.field) != second.shape(spec.field)) {
      difference.problem =
          fmt::format("shape [{}] against [{}]", fmt::join(first.shape(spec.field), ", "),
                      fmt::join(second.shape(spec.field), ", "));
    } else {
      Comparison(first, second, options, difference).run(spec.field);
    }
    result.datasets.push_back(std::move(difference));
  }
  result.datasets.push_back(compare_texts(first, second));
  result.equal = std::ranges::all_of(result.datasets, [](const auto& d) { return d.equal(); });
  return result;
}

}  // namespace blockscope
