// A study makes one table or figure of a paper on any model: work in cells, each safe on disk once
// it is measured, and a report of all of them. To add one: a file with its Study and its source, a
// line in studies.cpp.
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

/// What a study may be told; each looks at some of it (StudyInfo::options).
struct StudyOptions {
  StudyPromptFlags prompts;
  std::vector<int64_t> set_sizes;       // --k
  std::vector<int64_t> pages;           // --pages
  std::vector<double> densities;        // --densities
  std::vector<int64_t> taus;            // --taus
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

/// What a reader gets: tables for the terminal, one row a number for CSV, pictures. Where text and
/// CSV have the same rows, both come from one list of TableCell.
struct StudyReport {
  std::vector<ReportTable> tables;
  std::vector<std::string> notes;  // sentences below the tables
  NumberTable csv;
  std::vector<Figure> figures;
};

class Study {
 public:
  virtual ~Study() = default;
  /// Names of the cells, unique, in the order of the work. What a name stands for is decided by the
  /// settings that the store compares.
  virtual std::vector<std::string> cells() const = 0;
  /// Files besides the results that measuring writes into the folder.
  virtual std::vector<std::string> outputs() const { return {}; }
  /// What the report needs of a cell. Throws InterruptedError.
  virtual nlohmann::json measure(size_t cell) = 0;
  /// `values`: of all cells, in their order.
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

/// A study by name, and what it is about.
struct StudyInfo {
  std::string name;                         // "needle"
  std::string description;                  // one line
  std::string source;                       // "MAGE, Table 3 and Fig. 4"
  std::vector<std::string> options;         // flags of `study` that it looks at, with dashes
  void (*defaults)(StudyOptions& options);  // fills in what was not given
  std::unique_ptr<Study> (*make)(const StudyInput& input);
};

const std::vector<StudyInfo>& all_studies();
/// Throws UsageError listing the names.
const StudyInfo& study_by_name(const std::string& name);

// The studies, one file each.
std::unique_ptr<Study> make_caches_study(const StudyInput& input);
std::unique_ptr<Study> make_union_study(const StudyInput& input);
std::unique_ptr<Study> make_stages_study(const StudyInput& input);
std::unique_ptr<Study> make_estimators_study(const StudyInput& input);
std::unique_ptr<Study> make_needle_study(const StudyInput& input);
std::unique_ptr<Study> make_residual_study(const StudyInput& input);
std::unique_ptr<Study> make_tau_study(const StudyInput& input);
std::unique_ptr<Study> make_time_study(const StudyInput& input);

/// "41.2", one decimal of a share in percent; "-" for NaN.
std::string percent_number(double share);

/// Each once, in the order of the prompts; "" of given ones.
std::vector<std::string> tasks_of(const std::vector<StudyPrompt>& prompts);
using TaskTotals = std::map<std::string, MethodTotals>;
/// A row for each method: its accuracy by task, and over all tasks the share of tokens equal to
/// the first method's and of keys not read. `title`: of the methods' names.
NumberTable accuracy_by_task(const std::string& title, const std::vector<std::string>& names,
                             const std::vector<std::string>& tasks,
                             const std::vector<TaskTotals>& totals);

}  // namespace blockscope
