// Building blocks of the texts of verify and bench.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

#include "probe/verify/agreement.h"

namespace blockscope {

/// 0.1234 -> "12.3 %".
inline std::string percent(double share) { return fmt::format("{:.1f} %", share * 100.0); }

inline std::string accuracy(const PairedScores& scores, double mean) {
  return scores.count == 0 ? "n/a" : percent(mean);
}

/// Lines of four columns: a name, the reference, the policy and a note.
class Lines {
 public:
  void title(const std::string& text) { fmt::format_to(out(), "\n{}\n", text); }
  void row(const std::string& name, const std::string& reference, const std::string& policy,
           const std::string& note = "") {
    const std::string line =
        fmt::format("  {:<24}{:>18}{:>18}   {}", name, reference, policy, note);
    text_ += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  void line(const std::string& text) { text_ += "  " + text + '\n'; }
  std::string take() { return std::move(text_); }
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }

 private:
  std::string text_;
};

/// How certain a difference in accuracy is.
std::string noise_text(const PairedScores& scores);

}  // namespace blockscope
