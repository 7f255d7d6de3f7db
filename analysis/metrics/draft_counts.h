// The share of reached positions that the target accepted, by a property of the position. Internal
// to the metric `draft`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

struct AcceptedShare {
  std::int64_t accepted = 0;
  std::int64_t reached = 0;

  void add(bool was_accepted) {
    accepted += was_accepted ? 1 : 0;
    ++reached;
  }
  double share() const;  ///< NaN without reached positions
};

/// Values in bins [edge i, edge i + 1), the last one without an upper end.
struct BinEdges {
  std::vector<double> edges;  ///< ascending, from the smallest possible value
  bool whole = false;         ///< values are whole numbers: "3-4" rather than "3-5"

  /// The bin of a value; -1: below all bins.
  std::ptrdiff_t bin(double value) const;
  /// Indices are the lower ends; labels are "0.1-0.3", "6+", or "none" for -1.
  ResultAxis axis(std::string name) const;
};

/// Whole numbers from 0, 1, 2, 4, 8, ... Ranks also have -1 for a token without a rank.
BinEdges rank_bins();
BinEdges depth_bins();
/// Nats.
BinEdges entropy_bins();
/// Ten bins from 0 to 1; 1 belongs to the last.
BinEdges mass_bins();

class BinnedShares {
 public:
  explicit BinnedShares(BinEdges edges) : edges_(std::move(edges)), shares_(edges_.edges.size()) {}

  /// False if the value is not a number or below all bins.
  bool add(double value, bool was_accepted);
  const std::vector<AcceptedShare>& shares() const { return shares_; }  ///< [bin]
  const BinEdges& edges() const { return edges_; }
  /// The shares, without empty bins at the beginning and the end.
  ResultArray array(std::string name, std::string description, std::string axis) const;

 private:
  BinEdges edges_;
  std::vector<AcceptedShare> shares_;  // [bin]
};

void append(ResultArray& array, const AcceptedShare& share);

}  // namespace blockscope
