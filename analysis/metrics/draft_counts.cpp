#include "analysis/metrics/draft_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace blockscope {
namespace {

constexpr double kLargestWhole = 1 << 24;  // above every position and token id

BinEdges powers_of_two(std::vector<double> edges) {
  for (double edge = edges.back() * 2.0; edge <= kLargestWhole; edge *= 2.0) edges.push_back(edge);
  return {std::move(edges), true};
}

}  // namespace

double AcceptedShare::share() const {
  return reached == 0 ? std::numeric_limits<double>::quiet_NaN()
                      : static_cast<double>(accepted) / static_cast<double>(reached);
}

std::ptrdiff_t BinEdges::bin(double value) const {
  if (std::isnan(value)) return -1;
  return std::ranges::upper_bound(edges, value) - edges.begin() - 1;
}

ResultAxis BinEdges::axis(std::string name) const {
  ResultAxis axis{std::move(name), edges, {}};
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const double upper = i + 1 < edges.size() ? edges[i + 1] - (whole ? 1.0 : 0.0) : edges[i];
    if (edges[i] < 0.0) {
      axis.labels.emplace_back("none");
    } else if (i + 1 == edges.size()) {
      axis.labels.push_back(fmt::format("{}+", edges[i]));
    } else if (whole && upper == edges[i]) {
      axis.labels.push_back(fmt::format("{}", edges[i]));
    } else {
      axis.labels.push_back(fmt::format("{}-{}", edges[i], upper));
    }
  }
  return axis;
}

BinEdges rank_bins() { return powers_of_two({-1.0, 0.0, 1.0, 2.0}); }

BinEdges depth_bins() { return powers_of_two({0.0, 1.0, 2.0}); }

BinEdges entropy_bins() { return {{0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 4.0, 6.0}, false}; }

BinEdges mass_bins() { return {{0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}, false}; }

bool BinnedShares::add(double value, bool was_accepted) {
  const std::ptrdiff_t bin = edges_.bin(value);
  if (bin < 0) return false;
  shares_[static_cast<std::size_t>(bin)].add(was_accepted);
  return true;
}

ResultArray BinnedShares::array(std::string name, std::string description, std::string axis) const {
  ResultArray array{std::move(name), "share", std::move(description), {}, {}, {}};
  ResultAxis bins{axis, {}, {}};
  const ResultAxis all = edges_.axis(std::move(axis));
  const auto used = [](const AcceptedShare& share) { return share.reached > 0; };
  const auto first = std::ranges::find_if(shares_, used) - shares_.begin();
  const auto end = shares_.rend() - std::find_if(shares_.rbegin(), shares_.rend(), used);
  for (auto i = static_cast<std::size_t>(first); std::cmp_less(i, end); ++i) {
    bins.index.push_back(all.index[i]);
    bins.labels.push_back(all.labels[i]);
    append(array, shares_[i]);
  }
  array.axes.push_back(std::move(bins));
  return array;
}

void append(ResultArray& array, const AcceptedShare& share) {
  array.values.push_back(share.share());
  array.terms.push_back(share.reached);
}

}  // namespace blockscope
