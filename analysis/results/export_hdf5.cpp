#include "analysis/results/export_hdf5.h"

#include <map>
#include <span>

#include "decode_record/files/array_file.h"

namespace blockscope {
namespace {

bool same_axis(const ResultAxis& a, const ResultAxis& b) {
  return a.index == b.index && a.labels == b.labels;
}

/// Writes the arrays of one metric; remembers which axes its group has.
class MetricGroup {
 public:
  MetricGroup(ArrayFile& file, const MetricResult& result)
      : file_(file), path_("/" + result.metric) {
    std::vector<ArrayAttribute> attributes = {{"title", result.title},
                                              {"formula", result.formula},
                                              {"source", result.source},
                                              {"computed_from", result.computed_from}};
    for (const auto& [reason, count] : result.left_out) {
      attributes.emplace_back("left out: " + reason, count);
    }
    file_.add_group(path_, attributes);
  }

  void add(const ResultArray& array) {
    std::vector<std::string> axes;
    for (const ResultAxis& axis : array.axes) axes.push_back(axis_path(axis, array.name));
    const std::string path = path_ + "/" + array.name;
    file_.add_array(path, axes, std::span<const double>(array.values),
                    {{"units", array.unit}, {"long_name", array.description}});
    if (array.terms.empty()) return;
    file_.add_array(path + "_terms", axes, std::span<const std::int64_t>(array.terms),
                    {{"units", "terms"}, {"long_name", "number of terms of " + array.name}});
  }

 private:
  std::string axis_path(const ResultAxis& axis, const std::string& array) {
    std::string name = axis.name;
    const auto known = axes_.find(name);
    if (known != axes_.end()) {
      if (same_axis(known->second, axis)) return path_ + "/" + name;
      name += "_of_" + array;
    }
    axes_.emplace(name, axis);
    const std::string path = path_ + "/" + name;
    if (axis.labels.empty()) {
      file_.add_axis(path, std::span<const double>(axis.index));
    } else {
      file_.add_axis(path, std::span<const std::string>(axis.labels));
    }
    return path;
  }

  ArrayFile& file_;
  std::string path_;
  std::map<std::string, ResultAxis> axes_;
};

}  // namespace

void write_hdf5(const AnalysisDocument& document, const OutputFile& output) {
  ArrayFile file(output);
  std::string traces;
  for (const std::string& trace : document.traces) traces += (traces.empty() ? "" : "\n") + trace;
  std::vector<ArrayAttribute> attributes = {{"format", std::string("blockscope-analysis")},
                                            {"format_version", std::int64_t{1}},
                                            {"program", document.program},
                                            {"traces", traces},
                                            {"model_digest", document.model_digest}};
  for (const auto& [flag, value] : document.selection) {
    attributes.emplace_back("selection: " + flag, value);
  }
  file.add_group("/", attributes);
  for (const MetricResult& result : document.results) {
    MetricGroup group(file, result);
    for (const ResultArray& array : result.arrays) group.add(array);
  }
  file.close();
}

}  // namespace blockscope
