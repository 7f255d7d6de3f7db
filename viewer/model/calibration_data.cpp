// Chooses the open traces of a calibration, and runs the pass over them in the background.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "analysis/pass/exact_values.h"
#include "decode_record/base/error.h"
#include "viewer/model/calibration_edit.h"

namespace blockscope {
namespace {

constexpr const char* kSlot = "calibration";

/// Throws the error that says why a calibration can't use this trace together with `first`.
void check_source(const OpenDocument& document, const OpenDocument& first) {
  const TraceInfo& info = document.overview->info;
  if (info.meta.level < RecordLevel::summary) {
    throw TraceError(
        fmt::format("{}: this trace has level '{}'. Calibration needs a trace captured with "
                    "--record summary or above.",
                    info.path, to_string(info.meta.level)));
  }
  exact_fields(info);
  if (shape_of(info.meta).model_digest.empty()) {
    throw TraceError(
        fmt::format("{}: the trace doesn't say which checkpoint it is from, and a calibration must",
                    info.path));
  }
  if (&document != &first) {
    check_same_shape(shape_of(first.overview->info.meta), first.overview->info.path,
                     shape_of(info.meta), info.path);
  }
}

}  // namespace

std::size_t CalibrationPayload::bytes() const {
  const auto heads = static_cast<std::size_t>(sums->model.layers * sums->model.heads);
  const std::size_t ranges = sums->ranges.size();
  const std::size_t errors =
      ranges * ((ranges + 3) / 2 + kRowKinds.size()) * sizeof(ReuseErrorSums);  // of a tau
  return sizeof(*sums) + heads * (ranges * 6 * sizeof(double) + sums->taus.size() * errors);
}

std::optional<ReuseModel> reuse_model_of(const TraceMeta& meta) {
  const TraceShape shape = shape_of(meta);
  if (shape.model_digest.empty()) return std::nullopt;
  return ReuseModel{shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.model_digest,
                    shape.layer_kv_heads};
}

std::vector<CalibrationSource> calibration_sources(const ViewModel& model) {
  std::vector<CalibrationSource> sources;
  if (model.overview() == nullptr) return sources;
  const std::vector<OpenDocument>& documents = model.documents();
  const OpenDocument& active = documents[model.selection().trace];
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (!documents[i].overview) continue;
    CalibrationSource source{i, documents[i].version, ""};
    try {
      check_source(documents[i], active);
    } catch (const Error& error) {
      source.missing = error.what();
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

Data<CalibrationPayload> request_calibration(ViewModel& model,
                                             const std::vector<CalibrationSource>& sources,
                                             const CalibrationChoice& choice, bool from_summary) {
  std::vector<std::string> paths;
  CalibrationOptions options;
  options.from_summary = from_summary;
  options.pass.memory_bytes = std::size_t{64} << 20;
  options.ranges = choice.ranges;
  options.reference = choice.reference;
  options.kept_tau = choice.tau;
  std::string key = fmt::format("{}/{}", kSlot, fmt::join(choice.ranges.first, ","));
  for (const CalibrationSource& source : sources) {
    if (!source.missing.empty()) continue;
    paths.push_back(model.documents()[source.trace].path);
    key += fmt::format("/{}.{}", source.trace, source.version);
  }
  const bool kept = choice.reference == ReuseReference::kept;
  const bool new_tau = !std::ranges::count(options.taus, choice.tau);
  if (new_tau) options.taus.push_back(choice.tau);
  if (new_tau || kept) key += fmt::format("/tau{}", choice.tau);
  if (kept) key += "/kept";
  if (from_summary) key += "/summary";
  return model.data().request<CalibrationPayload>(
      kSlot, key, [paths, options](OpenTraces&, JobControl& control) mutable {
        options.pass.progress = [&control](std::int64_t done, std::int64_t total) {
          control.report(static_cast<double>(done), static_cast<double>(total));
          return true;
        };
        auto payload = std::make_shared<CalibrationPayload>();
        payload->sums = std::make_shared<const CalibrationSums>(
            accumulate_calibration(TraceGroup(paths), options));
        return payload;
      });
}

void cancel_calibration(ViewModel& model) { model.data().forget(kSlot); }

CsvTable calibration_table(const CalibrationEdit& edit) {
  CsvTable table({"first step", "layer", "head", "similarity of A_out [cosine]", "standard error",
                  "p5", "mean change of L_out", "step pairs", "reuse", "pinned"});
  if (edit.sums() == nullptr || edit.result() == nullptr) return table;
  const CalibrationSums& sums = *edit.sums();
  const auto add = [&](std::size_t range, std::size_t layer, std::size_t head) {
    const auto l = static_cast<std::int64_t>(layer);
    const auto h = static_cast<std::int64_t>(head);
    table.add({sums.ranges.first[range], l, h, sums.similarity[range][layer][head],
               sums.standard_error[range][layer][head], sums.p5[range][layer][head],
               sums.lse_drift.empty() ? kNotMeasured : sums.lse_drift[range][layer][head],
               sums.count[range][layer][head],
               std::int64_t{edit.result()->reuse.heads[range][layer][head]},
               std::int64_t{edit.pin_of(l, h).has_value()}});
  };
  for (std::size_t range = 0; range < sums.ranges.size(); ++range) {
    for (std::size_t layer = 0; layer < sums.similarity[range].size(); ++layer) {
      for (std::size_t head = 0; head < sums.similarity[range][layer].size(); ++head) {
        add(range, layer, head);
      }
    }
  }
  return table;
}

void save_calibration(const ViewModel& model, CalibrationEdit& edit, const std::string& path,
                      bool replace) {
  model.files().reserve(path, replace);
  edit.save(path, replace);
}

}  // namespace blockscope
