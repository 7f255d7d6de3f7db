// How many of the positions that a target reached it accepted, by something they have. Internal to
// the metric `draft`.
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
  double share() const;  ///< NaN without any
};

/// Values in bins [edge i, edge i + 1), the last one without an upper end.
struct BinEdges {
  std::vector<double> edges;  ///< ascending, from the least value there can be
  bool whole = false;         ///< values are whole numbers: "3-4" rather than "3-5"

  /// -1: below all.
  std::ptrdiff_t bin(double value) const;
  /// Index: lower ends; labels: "0.1-0.3", "6+"; "none" for -1.
  ResultAxis axis(std::string name) const;
};

/// Of whole numbers: 0, 1, 2, 4, 8, ...; ranks also -1, of what has none.
BinEdges rank_bins();
BinEdges depth_bins();
/// Nats.
BinEdges entropy_bins();
/// Tenths of 0 to 1, which belongs to the last.
BinEdges mass_bins();

class BinnedShares {
 public:
  explicit BinnedShares(BinEdges edges) : edges_(std::move(edges)), shares_(edges_.edges.size()) {}

  /// False: not a number, or below all bins.
  bool add(double value, bool was_accepted);
  const std::vector<AcceptedShare>& shares() const { return shares_; }  ///< [bin]
  const BinEdges& edges() const { return edges_; }
  /// Without the empty bins before the first one with terms and behind the last.
  ResultArray array(std::string name, std::string description, std::string axis) const;

 private:
  BinEdges edges_;
  std::vector<AcceptedShare> shares_;  // [bin]
};

void append(ResultArray& array, const AcceptedShare& share);

}  // namespace blockscope
