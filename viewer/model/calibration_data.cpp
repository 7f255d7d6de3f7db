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
  return sizeof(*sums) +
         heads * (5 * sizeof(double) + sums->taus.size() * 2 * sizeof(ReuseErrorSums));
}

std::optional<ReuseModel> reuse_model_of(const TraceMeta& meta) {
  const TraceShape shape = shape_of(meta);
  if (shape.model_digest.empty()) return std::nullopt;
  return ReuseModel{shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.model_digest};
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
                                             std::int64_t tau, bool from_summary) {
  std::vector<std::string> paths;
  CalibrationOptions options;
  options.from_summary = from_summary;
  options.pass.memory_bytes = std::size_t{64} << 20;
  std::string key = kSlot;
  for (const CalibrationSource& source : sources) {
    if (!source.missing.empty()) continue;
    paths.push_back(model.documents()[source.trace].path);
    key += fmt::format("/{}.{}", source.trace, source.version);
  }
  if (!std::ranges::count(options.taus, tau)) {
    options.taus.push_back(tau);
    key += fmt::format("/tau{}", tau);
  }
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
  CsvTable table({"layer", "head", "similarity of A_out [cosine]", "standard error", "p5",
                  "step pairs", "reuse", "pinned"});
  if (edit.sums() == nullptr || edit.result() == nullptr) return table;
  const CalibrationSums& sums = *edit.sums();
  for (std::size_t layer = 0; layer < sums.similarity.size(); ++layer) {
    for (std::size_t head = 0; head < sums.similarity[layer].size(); ++head) {
      const auto l = static_cast<std::int64_t>(layer);
      const auto h = static_cast<std::int64_t>(head);
      table.add({l, h, sums.similarity[layer][head], sums.standard_error[layer][head],
                 sums.p5[layer][head], sums.count[layer][head],
                 std::int64_t{edit.result()->reuse[layer][head]},
                 std::int64_t{edit.pin_of(l, h).has_value()}});
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
