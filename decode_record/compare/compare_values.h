// Elements of two datasets, one by one, within a tolerance. Internal to decode_record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decode_record/compare/compare_traces.h"
#include "decode_record/hdf5/h5.h"

namespace blockscope {

/// Collects what it finds in a DatasetDifference.
class ValueComparison {
 public:
  ValueComparison(const CompareOptions& options, h5::Element in_a, h5::Element in_b,
                  DatasetDifference& result)
      : options_(options), in_a_(in_a), in_b_(in_b), result_(result) {}

  /// Rows [first_row, ...) of a dataset whose rows have the shape `shape` behind its first axis.
  /// The same float in two element types (bf16 and f32) is compared by value.
  void compare(std::int64_t first_row, std::span<const hsize_t> shape, std::span<const std::byte> a,
               std::span<const std::byte> b);

 private:
  bool equal_integers(std::int64_t a, std::int64_t b);
  bool equal_floats(double a, double b);

  const CompareOptions& options_;
  h5::Element in_a_;
  h5::Element in_b_;
  DatasetDifference& result_;
};

}  // namespace blockscope
