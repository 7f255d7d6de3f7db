#include "cli/analyze_matrix.h"

#include <fmt/format.h>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

std::optional<std::int64_t> the_only(const Indices& indices, const std::string& flag) {
  if (!indices) return std::nullopt;
  if (indices->size() == 1) return indices->front();
  throw UsageError(
      fmt::format("{}: a matrix takes one, got {}. HINT: name one index", flag, indices->size()));
}

}  // namespace

MatrixRequest matrix_request(const AnalyzeFlags& flags, const TraceShape& shape) {
  const AnalyzeSelection selection = parse_selection(flags, shape);
  MatrixRequest request;
  request.kind = matrix_kind(flags.matrix);
  request.field = flags.field;
  request.layer = the_only(selection.layers, "--layer");
  request.head = the_only(selection.heads, "--head");
  request.rows = selection.rows;
  request.steps = selection.steps.value_or(std::vector<std::int64_t>{});
  if ((flags.row_a < 0) != (flags.row_b < 0)) {
    throw UsageError("--row-a, --row-b: give both, or neither and --step");
  }
  if (flags.row_a >= 0) request.row_pair.emplace(flags.row_a, flags.row_b);
  return request;
}

}  // namespace blockscope
