// A study makes one table or figure of a paper for any model. Its work is divided into cells. Each
// cell is safe on disk once it is measured, and a report covers all of them. To add a study: a file
// with the Study and its source, and a line in studies.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/figures/report_figure.h"
#include "probe/run/run_flags.h"
#include "probe/study/method_runs.h"
#include "probe/study/study_prompts.h"

namespace blockscope {

/// The options of all studies; each study uses some of them (StudyInfo::options).
struct StudyOptions {
  StudyPromptFlags prompts;
  std::vector<int64_t> set_sizes;       // --k
  std::vector<int64_t> pages;           // --pages
  std::vector<double> densities;        // --densities
  std::vector<int64_t> taus;            // --taus
  std::vector<std::string> policies;    // --policies
  std::vector<int64_t> steps;           // --steps, denoising steps of a block
  int64_t blocks = 2;                   // --blocks to time
  int64_t repeats = 3;                  // --repeats of each time
  int64_t batch_size = 1;               // --batch-size, time
  int64_t exact_layers = 0;             // --exact-layers
  uint64_t policy_seed = 0;             // --policy-seed
  std::vector<std::string> caches;      // --caches
  std::vector<std::string> strategies;  // --strategies
  std::string backbone;                 // --backbone
  std::string folder;                   // -o
  std::string predict;                  // --predict, a device; empty: times are measured
  int64_t tp = 1;                       // --tp, devices that share the model
  std::vector<int64_t> totals;          // --total-contexts
  std::string trace;                    // --trace
  std::optional<double> reuse_share;    // --reuse-share
  double gamma = 0.85;                  // --gamma
  double lse_bound = 0.05;              // --lse-bound
  std::string compare;                  // --compare
};

struct StudyInput {
  const LoadedModel& model;
  const Tokenizer* tokenizer;  // may be null
  const DecodeOptions& decode;
  int64_t gen_length = 0;
  const StudyOptions& options;
  const Environment& environment;
  const ModelFlags& model_flags;
};

/// The results for a reader: tables for the terminal, CSV and figures. If text and CSV have the
/// same rows, both come from one list of TableCell.
struct StudyReport {
  std::vector<ReportTable> tables;
  std::vector<std::string> notes;  // sentences below the tables
  NumberTable csv;
  std::vector<Figure> figures;
};

class Study {
 public:
  virtual ~Study() = default;
  /// Unique names of the cells, in the order of the work. The settings that the store compares
  /// decide what a name means.
  virtual std::vector<std::string> cells() const = 0;
  /// Files that measuring writes into the folder, in addition to the results.
  virtual std::vector<std::string> outputs() const { return {}; }
  /// Measures what the report needs of a cell. Throws InterruptedError.
  virtual nlohmann::json measure(size_t cell) = 0;
  /// `values`: the measured values of all cells, in their order.
  virtual StudyReport report(const std::vector<nlohmann::json>& values) const = 0;
};

/// A study whose cells are its prompts.
class PromptStudy : public Study {
 public:
  /// Throws what study_prompts throws.
  explicit PromptStudy(const StudyInput& input);
  std::vector<std::string> cells() const final;

 protected:
  StudyInput input_;
  std::vector<StudyPrompt> prompts_;
};

/// A study with its name and description.
struct StudyInfo {
  std::string name;                         // "needle"
  std::string description;                  // one line
  std::string source;                       // "MAGE, Table 3 and Fig. 4"
  std::vector<std::string> options;         // flags of `study` that it uses, with dashes
  void (*defaults)(StudyOptions& options);  // fills in what was not given
  std::unique_ptr<Study> (*make)(const StudyInput& input) = nullptr;
  /// In place of `make`: a study of the trace `options.trace`, which loads no model.
  StudyReport (*of_trace)(const StudyOptions& options) = nullptr;
};

const std::vector<StudyInfo>& all_studies();
/// Throws UsageError listing the names.
const StudyInfo& study_by_name(const std::string& name);

// The studies, one file each.
std::unique_ptr<Study> make_caches_study(const StudyInput& input);
std::unique_ptr<Study> make_union_study(const StudyInput& input);
std::unique_ptr<Study> make_stages_study(const StudyInput& input);
std::unique_ptr<Study> make_estimators_study(const StudyInput& input);
std::unique_ptr<Study> make_knockout_study(const StudyInput& input);
std::unique_ptr<Study> make_needle_study(const StudyInput& input);
std::unique_ptr<Study> make_residual_study(const StudyInput& input);
std::unique_ptr<Study> make_tau_study(const StudyInput& input);
std::unique_ptr<Study> make_time_study(const StudyInput& input);
/// Throws what TraceGroup and calibration throw, UsageError for a trace of a model with tokens, and
/// Error for a file of --compare that can't be read.
StudyReport video_report(const StudyOptions& options);

/// The policies of --policies as methods: one for each k if the policy has that option and the text
/// names neither k nor density. Throws UsageError if `others` have the name, and what read_policy
/// throws.
std::vector<StudyMethod> named_methods(const StudyOptions& options,
                                       const std::vector<int64_t>& set_sizes,
                                       const std::vector<StudyMethod>& others = {});

/// "41.2", one decimal of a share in percent; "-" for NaN.
std::string percent_number(double share);

/// The tasks, each once, in the order of the prompts; "" for given prompts.
std::vector<std::string> tasks_of(const std::vector<StudyPrompt>& prompts);
using TaskTotals = std::map<std::string, MethodTotals>;
/// A row for each method: its accuracy by task, and over all tasks the share of tokens equal to the
/// first method's and the share of keys not read. `title`: the heading of the methods' names.
NumberTable accuracy_by_task(const std::string& title, const std::vector<std::string>& names,
                             const std::vector<std::string>& tasks,
                             const std::vector<TaskTotals>& totals);

}  // namespace blockscope
