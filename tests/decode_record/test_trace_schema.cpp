// docs/trace_format.md describes exactly the datasets of the schema's table.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "decode_record/schema/trace_layout.h"

namespace blockscope {
namespace {

std::string document() {
  std::ifstream file(BLOCKSCOPE_SOURCE_DIR "/docs/trace_format.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(TraceSchema, IsWhatTheDocumentDescribes) {
  const std::string text = document();
  constexpr std::array<std::string_view, 6> types{"u8", "i32", "i64", "f32", "f16", "array"};
  constexpr std::array<std::string_view, 6> storages{"fixed",        "cell", "column",
                                                     "column_layer", "row",  "row_layer"};
  for (const DatasetSpec& spec : kDatasets) {
    std::vector<std::string_view> axes;
    for (std::size_t i = 0; i < spec.rank; ++i) axes.push_back(to_string(spec.axes[i]));
    const std::string line = fmt::format(
        "| `{}` | {} | {} | {} |", spec.path, types[static_cast<std::size_t>(spec.type)],
        fmt::join(axes, ", "), storages[static_cast<std::size_t>(spec.storage)]);
    EXPECT_NE(text.find(line), std::string::npos) << "expected in docs/trace_format.md: " << line;
  }
}

TEST(TraceSchema, HasNoDatasetBeyondTheTable) {
  const std::string text = document();
  const std::regex row(R"(\n\| `(/[a-z_0-9/]+)` \| (u8|i32|i64|f32|f16|array) \|)");
  std::set<std::string> described;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it) {
    described.insert((*it)[1]);
  }
  EXPECT_EQ(described.size(), kDatasets.size());
}

TEST(TraceSchema, ChunksArraysByRowAndLayerAndColumnsBySixtyFourKilobytes) {
  TraceMeta meta;
  meta.num_layers = 36;
  meta.num_heads = 32;
  meta.num_kv_heads = 8;
  meta.head_dim = 128;
  meta.hidden_size = 4096;
  meta.vocab_size = 1000;
  meta.softmax_scale = 0.1;
  meta.block_length = 32;
  meta.set_size = 512;
  meta.level = RecordLevel::full;
  meta.record_everything();
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(chunk_of(spec_of(Field::attention_external), meta), (Shape{1, 1, 32, 32, 128}));
  EXPECT_EQ(chunk_of(spec_of(Field::step_pass), meta), (Shape{1024}));
  EXPECT_EQ(chunk_of(spec_of(Field::similarity_external), meta), (Shape{8, 36, 32}));
  EXPECT_EQ(chunk_of(spec_of(Field::prefix_key), meta), (Shape{32, 1, 8, 128}));
  meta.level = RecordLevel::outputs;
  // DESIGN's scale: A_in + A_out 18.9 MB, and the queries half as much again.
  EXPECT_NEAR(static_cast<double>(recorded_row_bytes(meta)), 18.9e6 * 1.5, 2.0e6);
  TraceExtent extent;
  extent.length(Axis::row) = 1024;
  const std::int64_t filtered = file_bytes(meta, extent);
  EXPECT_LT(filtered, 1024 * 200'000);
  extent.recorded_rows = 1;
  EXPECT_NEAR(static_cast<double>(file_bytes(meta, extent) - filtered), 18.9e6 * 1.5, 2.0e6);
}

}  // namespace
}  // namespace blockscope
