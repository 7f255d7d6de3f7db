// tests/data/trace_schema_1.h5 was captured when schema 1 was released and never changes: every
// later version must read it. The expected values below were read from it with h5py. It was made
// with (a newer capture of the same prompts is not expected to be identical):
//   blockscope capture models/needle --prompts tests/data/trace_schema_1.jsonl --gen-length 12
//     --block-length 8 --record full --layers 1,4 --heads 0-2 --set-size 8 -q
//     -o tests/data/trace_schema_1.h5
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {
namespace {

const std::string kFrozen = BLOCKSCOPE_SOURCE_DIR "/tests/data/trace_schema_1.h5";

TEST(FrozenTrace, TheHeaderIsRead) {
  const TraceReader reader(kFrozen);
  EXPECT_EQ(reader.info().format_version, 1);
  EXPECT_TRUE(reader.info().complete);
  EXPECT_EQ(reader.info().num_rows, 26);
  EXPECT_EQ(reader.info().num_sequences, 2);
  EXPECT_EQ(reader.info().meta.level, RecordLevel::full);
  EXPECT_EQ(reader.info().meta.layers, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(reader.info().meta.heads, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(reader.info().meta.mask_token_id, 1018);
  EXPECT_EQ(reader.piece(reader.info().meta.mask_token_id), "<|MASK|>");
}

TEST(FrozenTrace, RowsAndTrajectoryAreRead) {
  const TraceReader reader(kFrozen);
  const StepColumns steps = reader.steps(0, 26);
  EXPECT_EQ(steps.kind, (std::vector<std::uint8_t>{0, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1,
                                                   2, 0, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 2}));
  EXPECT_EQ(steps.context_length[5], 56);
  // Schema 1 has M under /steps/transferred.
  EXPECT_EQ(steps.changed, (std::vector<std::int32_t>{0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1,
                                                       1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  const Frame last = reader.frame(0, 11);
  // The answer, end tokens (1015) to the end of the block; the run stopped there, so the last
  // block was never decoded.
  std::vector<std::int64_t> expected{852, 554, 922, 554, 978, 28, 22, 13, 1015, 1015, 1015};
  expected.insert(expected.end(), 8, 1018);
  EXPECT_EQ(last.generated_tokens, expected);
  EXPECT_EQ(last.masks_left(), 8U);
  EXPECT_EQ(reader.sequence(0).text, " ink = iron = cloud=7.");
  EXPECT_EQ(reader.sequence(1).text, " umbrella = parrot = urchin=9.");
}

TEST(FrozenTrace, ArraysAreRead) {
  const TraceReader reader(kFrozen);
  const std::vector<float> external = reader.read_floats_at(Field::attention_external, 2, 1);
  const std::size_t head_dim = 48;
  const std::size_t at = (2 * 8 + 3) * head_dim;  // head 2, block position 3
  EXPECT_EQ(external.at(at), 0.103515625F);
  EXPECT_EQ(external.at(at + 3), -0.53125F);
  const std::vector<std::int32_t> sets = reader.read_ints_at(Field::set_topk, 2, 0);
  EXPECT_EQ(std::vector<std::int32_t>(sets.begin(), sets.begin() + 8),
            (std::vector<std::int32_t>{41, 46, 47, 35, 31, 36, 9, 20}));
  EXPECT_FLOAT_EQ(reader.read_floats(Field::similarity_external, 2, 1).at(0), 0.99903977F);
}

}  // namespace
}  // namespace blockscope
