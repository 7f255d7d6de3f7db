// calibrate(): the pass and the choice of `blockscope calibrate`. read_reuse(): what a policy takes
// from its file.
#include <fmt/format.h>

#include "analysis/calibration/calibration.h"
#include "decode_record/base/error.h"
#include "python/bindings.h"

namespace blockscope::python {
namespace {

/// The calibration file's text, and warnings for its user.
nb::tuple calibrate_bound(const std::vector<nb::bytes>& traces, std::optional<double> gamma,
                          std::optional<double> saving, std::optional<double> max_error,
                          std::int64_t tau, const std::string& granularity, bool from_summary,
                          const std::string& count, const std::string& reference,
                          std::optional<double> lse_bound,
                          const std::optional<std::string>& by_step, bool provisional,
                          std::size_t threads, nb::object progress) {
  CalibrationRequest request;
  request.gamma = gamma;
  request.saving = saving;
  request.max_error = max_error;
  request.tau = tau;
  request.granularity = parse_reuse_granularity(granularity);
  request.lse_bound = lse_bound;
  check_request(request);
  PythonProgress shown(std::move(progress));
  const auto [text, warnings] = run_shown(shown, [&, paths = to_strings(traces)] {
    close_unfinished();
    const TraceGroup group(paths);
    if (group.shape().model_digest.empty()) {
      throw TraceError(
          fmt::format("{}: /model/json: expected the checkpoint's digest, got none: a "
                      "calibration must say which weights it is for",
                      paths.front()));
    }
    CalibrationOptions options;
    options.taus.push_back(tau);
    options.count = parse_reuse_count("count", count);
    options.from_summary = from_summary;
    options.reference = parse_reuse_reference("reference", reference);
    options.kept_tau = tau;
    options.needs_drift = lse_bound.has_value();
    if (by_step) {
      options.each_step = by_step->empty();
      if (!by_step->empty()) options.ranges = parse_step_ranges("by_step", *by_step);
    }
    if (provisional) options.provisional = {gamma.value(), lse_bound};
    options.pass.threads = threads;
    options.pass.progress = shown.callback();
    const CalibrationSums sums = accumulate_calibration(group, options);
    const Calibration chosen = choose(sums, request);
    std::string json = to_json(to_reuse_file(sums, chosen));
    parse_reuse_file(json, "calibration");  // check it like its readers
    return std::pair(std::move(json), warnings_of(chosen));
  });
  return nb::make_tuple(to_bytes(text), warnings);
}

/// The rule and masks of a calibration file for a model of these sizes, of any weights. row_errors:
/// [] if the file has none.
nb::dict read_reuse_bound(const nb::bytes& path, std::int64_t layers, std::int64_t heads,
                          std::int64_t kv_heads) {
  const ReuseFile file = without_gil([&, name = to_string(path)] {
    return read_reuse_file(name, ReuseModel{layers, heads, kv_heads, ""});
  });
  nb::list masks;
  for (const HeadMatrix<bool>& range : file.reuse.heads) {
    nb::list of_range;
    for (const std::vector<bool>& layer : range) {
      nb::list row;
      for (const bool reuse : layer) row.append(reuse);
      of_range.append(row);
    }
    masks.append(of_range);
  }
  nb::list errors;
  for (const RowErrors& range : file.row_errors) {
    errors.append(nb::make_tuple(range[0], range[1], range[2]));
  }
  nb::dict found;
  found["first_steps"] = file.reuse.ranges.first;
  found["reuse"] = masks;
  found["tau"] = file.tau;
  found["tau_counts"] = std::string(to_string(file.tau_counts));
  found["row_errors"] = errors;
  found["digest"] = file.model.digest;
  return found;
}

}  // namespace

void bind_calibration(nb::module_& module) {
  module.def("calibrate", &calibrate_bound, nb::arg("traces"), nb::arg("gamma").none(),
             nb::arg("saving").none(), nb::arg("max_error").none(), nb::arg("tau"),
             nb::arg("granularity"), nb::arg("from_summary"), nb::arg("count"),
             nb::arg("reference"), nb::arg("lse_bound").none(), nb::arg("by_step").none(),
             nb::arg("provisional"), nb::arg("threads"), nb::arg("progress").none());
  module.def("read_reuse", &read_reuse_bound, nb::arg("path"), nb::arg("layers"), nb::arg("heads"),
             nb::arg("kv_heads"));
}

}  // namespace blockscope::python
