// Traces of one command must not hold a sequence twice: not as a file of another name, not as a
// copy, not as a part and the merged trace that shows it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace blockscope {

class RawTrace;
class TraceReader;

class GivenOnce {
 public:
  /// Throws UsageError when the trace is the same file as one before it, or holds a sequence that
  /// one before it holds: one with the same prompt and the same duration of every pass, in
  /// nanoseconds. Copies have both, two runs never do. Sequences without any duration (written by
  /// other programs) are not compared.
  void add(const TraceReader& trace);
  void add(const RawTrace& trace);

 private:
  using Mark = std::array<std::uint8_t, 32>;
  template <typename Source>
  void add_source(const Source& source);
  std::vector<std::string> paths_;
  std::map<Mark, std::size_t> seen_;  // the trace that holds it
};

}  // namespace blockscope
