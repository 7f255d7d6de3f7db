// Any bytes as a CSV file of results: either an Error, or arrays whose values and terms have the
// size of their axes, and that are written and read back as the same.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "analysis/results/export_csv.h"
#include "analysis/results/read_csv.h"
#include "decode_record/base/error.h"

namespace {

std::string csv_of(const std::vector<blockscope::MetricResult>& results) {
  blockscope::AnalysisDocument document;
  document.results = results;
  std::ostringstream out;
  blockscope::write_csv(document, out);
  return out.str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const auto results = blockscope::parse_results_csv(in, "fuzz");
    std::size_t all = 0;
    for (const auto& result : results) {
      for (const auto& array : result.arrays) {
        std::size_t cells = 1;
        for (const auto& axis : array.axes) cells *= axis.size();
        if (array.values.size() != cells || array.terms.size() != cells) std::abort();
        all += cells;
      }
    }
    if (all > 4096) return 0;  // writing them would take long
    const std::string text = csv_of(results);
    std::istringstream again(text);
    if (csv_of(blockscope::parse_results_csv(again, "again")) != text) std::abort();
  } catch (const blockscope::Error&) {
  }
  return 0;
}
