// The result of every metric: labelled arrays of means with their numbers of terms, and how many
// terms were left out and why. Tables, CSV, JSON, HDF5, figures and the viewer all read this one
// form. None of them computes a metric.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace blockscope {

/// An axis with a coordinate per element. `index` has the user's numbers: the model's layer or
/// head, the step in its block from 1, k of a set. `labels` is empty, or names elements that have
/// no number ("A_out", "inf").
struct ResultAxis {
  std::string name;  ///< "layer", "head", "kv_head", "step", "tau", "k", "position", ...
  std::vector<double> index;
  std::vector<std::string> labels;

  std::size_t size() const { return labels.empty() ? index.size() : labels.size(); }
  /// The label, or the index as a number ("3", "0.95", "inf").
  std::string label(std::size_t i) const;
};

/// Values [axes...], row-major. A cell without terms is NaN.
struct ResultArray {
  std::string name;  ///< "similarity_external"; distinct within a MetricResult
  std::string unit;  ///< "cosine", "nats", "share", "keys", "1"
  std::string description;
  std::vector<ResultAxis> axes;
  std::vector<double> values;
  std::vector<std::int64_t> terms;  ///< [axes...]; empty: values are counts or have no terms

  std::size_t axis(const std::string& name) const;  ///< throws Error if there is none
  bool has_axis(const std::string& name) const;
  double at(const std::vector<std::size_t>& indices) const;
};

struct MetricResult {
  std::string metric;         ///< name on the command line, "similarity"
  std::string title;          ///< for the user, "Cross-step similarity"
  std::string formula;        ///< one line, plain text
  std::string source;         ///< paper and equation or figure
  std::string computed_from;  ///< datasets read, "/attention/external"
  std::vector<ResultArray> arrays;
  /// Terms that are not in the means, by reason: "rows without a prefix", "steps behind a gap",
  /// "blocks with one step", "rows with N <= k", "values that are NaN or infinite".
  std::map<std::string, std::int64_t> left_out;

  const ResultArray& array(const std::string& name) const;  ///< throws Error if there is none
  const ResultArray* find(const std::string& name) const;
};

/// Mean over all axes except `keep` (in this order), weighted by terms. Terms add up. NaN cells and
/// cells without terms are left out.
ResultArray mean_over_others(const ResultArray& array, const std::vector<std::string>& keep);

/// The elements of `axis` with an index in `wanted`, in the array's order. Throws UsageError if one
/// of `wanted` is missing; the message lists the existing elements.
ResultArray select(const ResultArray& array, const std::string& axis,
                   const std::vector<double>& wanted);
/// The part of an array at a label of `axis`, without this axis. Throws Error if there is none.
ResultArray part_at(const ResultArray& array, const std::string& axis, const std::string& label);

}  // namespace blockscope
