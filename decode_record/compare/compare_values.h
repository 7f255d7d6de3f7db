// Compares elements of two datasets one by one, within a tolerance. Internal to decode_record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decode_record/compare/compare_traces.h"
#include "decode_record/hdf5/h5.h"

namespace blockscope {

/// Adds its results to a DatasetDifference.
class ValueComparison {
 public:
  ValueComparison(const CompareOptions& options, h5::Element in_a, h5::Element in_b,
                  DatasetDifference& result)
      : options_(options), in_a_(in_a), in_b_(in_b), result_(result) {}

  /// Compares rows [first_row, ...) of a dataset; `shape` is the shape of a row, without the first
  /// axis. Floats of two element types (bf16 and f32) are compared by value.
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
