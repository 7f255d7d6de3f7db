// What is left of a trace whose file was cut off or damaged: the longest run of rows from the first
// one on whose data, in every dataset, lies in the file. Internal to decode_record.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/read/stored_trace.h"

namespace blockscope {

struct WholeRows {
  std::int64_t rows = 0;
  std::int64_t sequences = 0;
  std::int64_t committed_rows = 0;  ///< what the file says it holds
  std::int64_t committed_sequences = 0;
  std::vector<bool> cut;  ///< [sequences]: lost rows, or its text
  std::string why;        ///< what the first lost row lacks; empty when nothing is lost
  /// Nothing is lost.
  bool all() const {
    return rows == committed_rows && sequences == committed_sequences &&
           std::ranges::find(cut, true) == cut.end();
  }
};

/// Looks at chunk indices, not at the data. Throws CorruptTrace when the file doesn't even tell how
/// many rows it holds.
WholeRows find_whole_rows(const StoredTrace& trace);

}  // namespace blockscope
