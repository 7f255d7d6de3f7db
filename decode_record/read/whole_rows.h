// What is left of a trace in a cut or damaged file: the longest run of rows, from the first row on,
// with all their data in the file in every dataset. Internal to decode_record.
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
  std::int64_t committed_rows = 0;  ///< number that the file claims to hold
  std::int64_t committed_sequences = 0;
  std::vector<bool> cut;  ///< [sequences]: whether it lost rows or its text
  std::string why;        ///< what the first lost row lacks; empty when nothing is lost
  /// Whether nothing is lost.
  bool all() const {
    return rows == committed_rows && sequences == committed_sequences &&
           std::ranges::find(cut, true) == cut.end();
  }
};

/// Reads chunk indices, not the data. Throws CorruptTrace if the file does not even say how many
/// rows it holds.
WholeRows find_whole_rows(const StoredTrace& trace);

}  // namespace blockscope
