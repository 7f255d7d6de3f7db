// What every probe block of a batch sees: the true tokens before it, each once, and nothing else.
#include "probe/train/reuse_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/probe/train/tiny_trainer.h"

namespace blockscope {
namespace {

constexpr std::int64_t kProbeBlock = 8;

/// The true tokens that a probe's rows see, by position. Fails if one is seen twice, or if rows of
/// the block see different ones.
std::map<std::int64_t, std::int64_t> seen_by(const ReuseBatch& batch, std::int64_t s,
                                             std::int64_t probe) {
  std::map<std::int64_t, std::int64_t> seen;
  const at::Tensor lines = batch.mask[s][0].narrow(0, probe * kProbeBlock, kProbeBlock).eq(0);
  EXPECT_TRUE(lines.eq(lines[0]).all().item<bool>());
  for (std::int64_t c = 0; c < lines.size(1); ++c) {
    if (!lines[0][c].item<bool>()) continue;
    const auto position = batch.prefix.positions[s][c].item<std::int64_t>();
    EXPECT_TRUE(seen.emplace(position, batch.prefix.tokens[s][c].item<std::int64_t>()).second);
  }
  return seen;
}

std::int64_t shared_of(const ReuseBatch& batch, std::int64_t row) {
  const auto chunk = std::ranges::find_if(
      batch.chunks, [row](const RowChunk& c) { return c.begin <= row && row < c.end; });
  return chunk == batch.chunks.end() ? -1 : chunk->shared;
}

/// Context, question, answer and end tokens up to a whole block; the first position to predict.
struct Sequence {
  Ids ids;
  std::int64_t answer_begin = 0;
};

Sequence sequence_of(const TaskDocument& document, const TaskQuestion& question,
                     const TaskTokens& tokens) {
  Sequence sequence{tokens.encode(document.context), 0};
  const auto append = [&](const Ids& ids) {
    sequence.ids.insert(sequence.ids.end(), ids.begin(), ids.end());
  };
  append(tokens.encode(question.question));
  sequence.answer_begin = std::ssize(sequence.ids);
  append(tokens.encode(question.answer));
  sequence.ids.push_back(tokens.end);
  while (std::ssize(sequence.ids) % kProbeBlock != 0) sequence.ids.push_back(tokens.end);
  return sequence;
}

TEST(ReuseBatch, ProbesOfAnswersSeeContextAndQuestionAsDecodingDoes) {
  const TaskTokens tokens = needle_tokens();
  const std::vector<TaskDocument> documents{document_of(67), document_of(120)};
  TaskRandom random(TaskSplit::kTrain, 1, 1);
  ReuseBatchSpec spec{kProbeBlock, 1000, true};
  const ReuseBatch batch = make_reuse_batch(documents, tokens, spec, random);
  const std::int64_t probes = batch.tokens.size(1) / kProbeBlock;
  for (std::int64_t s = 0; s < std::ssize(documents); ++s) {
    const TaskDocument& document = documents[static_cast<std::size_t>(s)];
    std::set<std::pair<std::int64_t, std::int64_t>> expected;  // question or -1, position
    std::vector<Sequence> sequences;
    for (std::size_t g = 0; g < document.questions.size(); ++g) {
      sequences.push_back(sequence_of(document, document.questions[g], tokens));
      for (std::int64_t at = sequences[g].answer_begin / kProbeBlock * kProbeBlock;
           at < std::ssize(sequences[g].ids); at += kProbeBlock) {
        expected.emplace(static_cast<std::int64_t>(g), at);
      }
    }
    int of_context = 0;
    for (std::int64_t p = 0; p < probes; ++p) {
      const at::Tensor rows = batch.tokens[s].narrow(0, p * kProbeBlock, kProbeBlock);
      if (!rows.eq(tokens.mask).any().item<bool>()) continue;  // padding
      const auto begin = batch.positions[s][p * kProbeBlock].item<std::int64_t>();
      const auto seen = seen_by(batch, s, p);
      EXPECT_EQ(std::ssize(seen), begin);
      // The one sequence that has these tokens before the block.
      std::int64_t found = -2;
      for (std::size_t g = 0; g < sequences.size() && found == -2; ++g) {
        const Sequence& one = sequences[g];
        const bool fits = std::ranges::all_of(seen, [&](const auto& item) {
          return one.ids[static_cast<std::size_t>(item.first)] == item.second;
        });
        bool as_masked = true;
        for (std::int64_t i = 0; i < kProbeBlock; ++i) {
          const std::int64_t at = begin + i;
          const std::int64_t token =
              at < one.answer_begin ? one.ids[static_cast<std::size_t>(at)] : tokens.mask;
          as_masked = as_masked && rows[i].item<std::int64_t>() == token;
          EXPECT_EQ(batch.positions[s][p * kProbeBlock + i].item<std::int64_t>(), at);
        }
        const auto key = std::pair{static_cast<std::int64_t>(g), begin};
        if (fits && as_masked && expected.erase(key) > 0) found = static_cast<std::int64_t>(g);
      }
      if (found == -2) {  // a probe of the context: all masks
        EXPECT_TRUE(rows.eq(tokens.mask).all().item<bool>());
        EXPECT_LE(begin + kProbeBlock, std::ssize(document.context));
        ++of_context;
      }
      std::int64_t last = 0;
      for (std::int64_t c = 0; c < batch.mask.size(3); ++c) {
        if (batch.mask[s][0][p * kProbeBlock][c].item<float>() == 0.0F) last = c + 1;
      }
      EXPECT_LE(last, shared_of(batch, p * kProbeBlock));
    }
    EXPECT_TRUE(expected.empty());
    EXPECT_EQ(of_context, 2);
  }
}

TEST(ReuseBatch, HeldOutProbesAreEvenlySpaced) {
  TaskRandom random(TaskSplit::kTest, 1, 1);
  const ReuseBatch batch = make_reuse_batch({counted(100, 11 * kProbeBlock + 3)}, {7, 0},
                                            {kProbeBlock, 4, false}, random);
  std::vector<std::int64_t> begins;
  for (std::int64_t p = 0; p < 4; ++p) {
    begins.push_back(batch.positions[0][p * kProbeBlock].item<std::int64_t>());
    const auto seen = seen_by(batch, 0, p);
    EXPECT_EQ(std::ssize(seen), begins.back());
    for (const auto& [position, token] : seen) EXPECT_EQ(token, 100 + position);
  }
  EXPECT_EQ(begins, (std::vector<std::int64_t>{kProbeBlock, 4 * kProbeBlock, 7 * kProbeBlock,
                                               10 * kProbeBlock}));
}

TEST(ReuseBatch, ChosenProbesAreDifferentAndDrawnAnew) {
  std::set<std::vector<std::int64_t>> choices;
  for (std::uint64_t index = 0; index < 8; ++index) {
    TaskRandom random(TaskSplit::kTrain, 1, index);
    const ReuseBatch batch =
        make_reuse_batch({counted(100, 30 * kProbeBlock)}, {7, 0}, {kProbeBlock, 5, true}, random);
    std::vector<std::int64_t> begins;
    for (std::int64_t p = 0; p < 5; ++p) {
      begins.push_back(batch.positions[0][p * kProbeBlock].item<std::int64_t>());
    }
    EXPECT_TRUE(std::ranges::is_sorted(begins));
    EXPECT_EQ(std::ranges::adjacent_find(begins), begins.end());
    choices.insert(begins);
  }
  EXPECT_GE(choices.size(), 7U);
}

}  // namespace
}  // namespace blockscope
