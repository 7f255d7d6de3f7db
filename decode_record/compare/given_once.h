// No sequence may be given twice to one command: not by another name of the file, not in a copy,
// not in a part and the merged trace that shows it.
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
  /// Throws UsageError if the trace is the same file as an earlier one, or if both hold a sequence.
  /// Two sequences are the same if they have the same prompt and the same duration of every pass in
  /// nanoseconds. This is so for copies, and never for two runs. Sequences without any duration
  /// (written by other programs) are not compared.
  void add(const TraceReader& trace);
  void add(const RawTrace& trace);

 private:
  using Mark = std::array<std::uint8_t, 32>;
  template <typename Source>
  void add_source(const Source& source);
  std::vector<std::string> paths_;
  std::map<Mark, std::size_t> seen_;  // index of the trace that holds the sequence
};

}  // namespace blockscope
