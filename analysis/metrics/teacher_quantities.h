// What `diff --teacher` compares, in the order in which a layer computes it. Internal to the
// comparison, the command and their documents.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "decode_record/schema/trace_schema.h"

namespace blockscope {

enum class TeacherQuantity : std::uint8_t {
  hidden,
  query,
  key,
  value,
  lse_internal,
  lse_external,
  internal,
  external,
  merged,
  expert,
  router_weight,
  token,
  confidence
};

/// Which heads a quantity has.
enum class TeacherHeads : std::uint8_t { none, query, kv };

struct TeacherQuantityEntry {
  TeacherQuantity quantity;
  std::string_view name;   ///< in JSON and CSV
  std::string_view label;  ///< in tables
  /// Its dataset. Of `merged`: A_out, one of the four that it is computed from.
  Field field;
  TeacherHeads heads;
  bool by_layer;
  std::string_view look_at;  ///< where the cause is if this quantity is the first that differs
};

/// All of them, in computing order.
const std::vector<TeacherQuantityEntry>& teacher_quantities();
const TeacherQuantityEntry& entry_of(TeacherQuantity quantity);

}  // namespace blockscope
