// Frames and deltas against the rules of d2Cache's frames, stated once more here in the plainest
// way (PlainSequence: a list that is rebuilt element by element), with random deltas.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "decode_record/frames/decode_record.h"

// Deltas are written with only the fields they use.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace blockscope {
namespace {

constexpr std::int64_t kMask = 0;  // a valid id: 0 must not mean "no mask"

struct Token {
  std::int64_t id;
  float confidence;
  std::int64_t step;
};

/// One sequence with its own reading of the rules.
std::vector<Token> plain_apply(std::vector<Token> tokens, const SequenceDelta& delta) {
  std::int64_t step = 0;
  for (const Token& token : tokens) step = std::max(step, token.step + 1);
  const auto decoded = [&](std::int64_t source) {
    const auto i = static_cast<std::size_t>(source);
    return Token{delta.decoded_tokens[i], delta.confidence.empty() ? 0.0F : delta.confidence[i],
                 step};
  };
  for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
    tokens[static_cast<std::size_t>(delta.transfer_index[i])] = decoded(
        delta.transfer_src_index.empty() ? delta.transfer_index[i] : delta.transfer_src_index[i]);
  }
  std::vector<Token> grown;
  for (std::size_t at = 0; at <= tokens.size(); ++at) {
    for (std::size_t i = 0; i < delta.insert_index.size(); ++i) {
      if (delta.insert_index[i] == static_cast<std::int64_t>(at)) {
        grown.push_back(decoded(delta.insert_src_index[i]));
      }
    }
    if (at < tokens.size()) grown.push_back(tokens[at]);
  }
  std::vector<Token> kept;
  for (std::size_t i = 0; i < grown.size(); ++i) {
    if (std::ranges::count(delta.delete_index, static_cast<std::int64_t>(i)) == 0) {
      kept.push_back(grown[i]);
    }
  }
  return kept;
}

void expect_same(const Frame& frame, std::size_t sequence, const std::vector<Token>& expected) {
  ASSERT_EQ(frame.gen_length, expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(frame.tokens_of(sequence)[i], expected[i].id) << "position " << i;
    ASSERT_EQ(frame.confidence_of(sequence)[i], expected[i].confidence) << "position " << i;
    ASSERT_EQ(frame.steps_of(sequence)[i], expected[i].step) << "position " << i;
  }
}

std::vector<Token> plain_row(const Frame& frame, std::size_t sequence) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < frame.gen_length; ++i) {
    tokens.push_back({frame.tokens_of(sequence)[i], frame.confidence_of(sequence)[i],
                      frame.steps_of(sequence)[i]});
  }
  return tokens;
}

class RandomDeltas {
 public:
  explicit RandomDeltas(unsigned seed) : random_(seed) {}
  std::int64_t below(std::size_t limit) {
    return static_cast<std::int64_t>(random_() % std::max<std::size_t>(limit, 1));
  }
  std::vector<std::int64_t> distinct(std::size_t count, std::size_t limit) {
    std::vector<std::int64_t> all(limit);
    for (std::size_t i = 0; i < limit; ++i) all[i] = static_cast<std::int64_t>(i);
    std::ranges::shuffle(all, random_);
    all.resize(std::min(count, limit));
    return all;
  }
  SequenceDelta row(std::size_t length, std::size_t insertions, std::size_t deletions) {
    SequenceDelta delta;
    delta.transfer_index = distinct(static_cast<std::size_t>(below(4)), length);
    const std::size_t decoded = length + 3;
    for (std::size_t i = 0; i < decoded; ++i) {
      delta.decoded_tokens.push_back(1 + below(50));
      delta.confidence.push_back(static_cast<float>(below(100)) / 100.0F);
    }
    if (below(2) == 0) {
      for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
        delta.transfer_src_index.push_back(below(decoded));
      }
    }
    for (std::size_t i = 0; i < insertions; ++i) {
      delta.insert_index.push_back(below(length + 1));
      delta.insert_src_index.push_back(below(decoded));
    }
    delta.delete_index = distinct(deletions, length + insertions);
    return delta;
  }
  FrameDelta delta(const Frame& frame) {
    FrameDelta result;
    result.num_sequences = frame.num_sequences;
    result.active.clear();
    result.rows.clear();
    const auto insertions = static_cast<std::size_t>(below(4));
    const std::size_t deletions =
        std::min(static_cast<std::size_t>(below(insertions + 1)), frame.gen_length);
    for (std::size_t s = 0; s < frame.num_sequences; ++s) {
      if (frame.num_sequences > 1 && below(3) == 0) continue;  // finished
      result.active.push_back(s);
      result.rows.push_back(row(frame.gen_length, insertions, deletions));
    }
    return result;
  }

 private:
  std::mt19937 random_;
};

Frame batch_of(std::size_t sequences, std::size_t length) {
  std::vector<Frame> frames;
  for (std::size_t s = 0; s < sequences; ++s) {
    frames.push_back(make_initial_frame({1, 2, static_cast<std::int64_t>(s)}, length, kMask));
  }
  return stack_frames(frames);
}

TEST(FrameDelta, AppliesTransfersThenInsertionsThenDeletions) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomDeltas random(seed);
    Frame frame = batch_of(1, 1 + seed % 9);
    std::vector<Token> expected = plain_row(frame, 0);
    for (int step = 0; step < 6; ++step) {
      const FrameDelta delta = random.delta(frame);
      expected = plain_apply(expected, delta.rows.front());
      apply_delta(frame, delta);
      expect_same(frame, 0, expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(FrameDelta, PadsFinishedSequencesOfABatchInFrontAndNeverDropsTheirTokens) {
  Frame frame = batch_of(2, 3);
  apply_delta(frame, {2,
                      {0, 1},
                      {{.transfer_index = {0}, .decoded_tokens = {7, 0, 0}},
                       {.transfer_index = {2}, .decoded_tokens = {0, 0, 9}}}});
  FrameDelta grow{
      2, {0}, {{.insert_index = {3, 0}, .insert_src_index = {0, 1}, .decoded_tokens = {5, 6}}}};
  apply_delta(frame, grow);
  const auto padded = frame.tokens_of(1);
  EXPECT_EQ(std::vector<std::int64_t>(padded.begin(), padded.end()),
            (std::vector<std::int64_t>{kMask, kMask, kMask, kMask, 9}));
  EXPECT_EQ(frame.steps_of(1)[0], kUndecodedStep);
  EXPECT_EQ(frame.confidence_of(1)[0], 0.0F);
  EXPECT_EQ(frame.current_step(1), 0);
  FrameDelta shrink{2, {0}, {{.delete_index = {0, 1, 2, 3}}}};
  apply_delta(frame, shrink);
  EXPECT_EQ(frame.tokens_of(1)[0], 9);
  const Frame before = frame;
  EXPECT_THROW(apply_delta(frame, {2, {0}, {{.delete_index = {0}}}}), FrameError);
  EXPECT_EQ(frame, before);  // a refused delta changes nothing
}

TEST(FrameDelta, AMaskThatAFinishedSequenceDecidedIsNoPadding) {
  Frame frame = batch_of(2, 3);
  apply_delta(frame, {2, {1}, {{.transfer_index = {0}, .decoded_tokens = {kMask, 0, 0}}}});
  ASSERT_EQ(frame.tokens_of(1)[0], kMask);
  ASSERT_EQ(frame.steps_of(1)[0], 0);
  EXPECT_THROW(apply_delta(frame, {2, {0}, {{.delete_index = {0}}}}), FrameError);
}

TEST(FrameDelta, InsertsInTheRightOrderForThreeCycles) {
  // d2Cache's tensor_insert puts these in the wrong places: {1, 2, 0} is not its own inverse.
  Frame frame = make_initial_frame({}, 3, kMask);
  apply_delta(frame, {1,
                      {0},
                      {{.insert_index = {1, 2, 0},
                        .insert_src_index = {0, 1, 2},
                        .decoded_tokens = {11, 12, 10}}}});
  const auto tokens = frame.tokens_of(0);
  EXPECT_EQ(std::vector<std::int64_t>(tokens.begin(), tokens.end()),
            (std::vector<std::int64_t>{10, kMask, 11, kMask, 12, kMask}));
}

TEST(FrameDelta, NumbersStepsFromTheTrueMaximumOfItsSequence) {
  Frame frame = batch_of(2, 4);
  for (std::int64_t i = 0; i < 3; ++i) {
    apply_delta(
        frame,
        {2, {1}, {{.transfer_index = {i}, .transfer_src_index = {0}, .decoded_tokens = {5}}}});
    EXPECT_EQ(frame.current_step(1), i);
    EXPECT_EQ(frame.current_step(0), kUndecodedStep);
  }
}

TEST(FrameDelta, ComposedEqualsOneAfterTheOther) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomDeltas random(seed);
    const Frame start = batch_of(1 + seed % 3, 1 + seed % 7);
    Frame expected = start;
    FrameDelta composed;
    for (int step = 0; step < 4; ++step) {
      const FrameDelta next = random.delta(expected);
      composed = step == 0 ? next : compose(start, composed, next);
      apply_delta(expected, next);
      Frame got = start;
      apply_delta(got, composed);
      ASSERT_EQ(got, expected) << "after " << step + 1 << " deltas";
    }
  }
}

TEST(FrameDelta, RefusesWhatDoesNotFit) {
  Frame frame = make_initial_frame({1}, 4, kMask);
  const auto refused = [&frame](SequenceDelta row) {
    EXPECT_THROW(apply_delta(frame, {1, {0}, {std::move(row)}}), FrameError);
  };
  refused({.transfer_index = {4}, .decoded_tokens = {1, 2, 3, 4, 5}});
  refused({.transfer_index = {-1}, .decoded_tokens = {1, 2, 3, 4}});
  refused({.transfer_index = {1, 1}, .decoded_tokens = {1, 2, 3, 4}});
  refused({.transfer_index = {3}, .decoded_tokens = {1}});
  refused({.insert_index = {5}, .insert_src_index = {0}, .decoded_tokens = {1}});
  refused({.insert_index = {0}, .insert_src_index = {1}, .decoded_tokens = {1}});
  refused({.insert_index = {0}, .decoded_tokens = {1}});
  refused({.delete_index = {4}});
  refused({.delete_index = {0, 0}});
  refused({.transfer_index = {0}, .decoded_tokens = {1, 2, 3, 4}, .confidence = {0.5F}});
  EXPECT_THROW(apply_delta(frame, {2, {0}, {{}}}), FrameError);
  EXPECT_THROW(apply_delta(frame, {1, {1}, {{}}}), FrameError);
  EXPECT_THROW((void)frame.tokens_of(1), FrameError);
}

TEST(DecodeRecord, GivesEveryFrameInAnyOrder) {
  RandomDeltas random(7);
  DecodeRecord record(batch_of(3, 6), 4);
  std::vector<Frame> live{record.initial_frame()};
  for (int t = 0; t < 200; ++t) {
    const FrameDelta delta = random.delta(live.back());
    Frame next = live.back();
    apply_delta(next, delta);
    live.push_back(next);
    record.append(delta);
  }
  ASSERT_EQ(record.num_frames(), live.size());
  for (std::size_t t = live.size(); t-- > 0;) ASSERT_EQ(record.frame(t), live[t]) << t;
  std::size_t t = 0;
  for (const Frame& frame : record) ASSERT_EQ(frame, live[t++]);
  EXPECT_EQ(t, live.size());
  Frame jumped = record.frame(10);
  apply_delta(jumped, record.composed(10, 25));
  EXPECT_EQ(jumped, live[25]);
  EXPECT_THROW(record.frame(201), FrameError);
  EXPECT_THROW((void)record.delta(200), FrameError);
}

TEST(DecodeRecord, ReachesAnyOfTenThousandStepsInATenthOfAMillisecond) {
  const std::size_t steps = 10'000;
  DecodeRecord record(make_initial_frame({1, 2, 3}, 1024, kMask), 32);
  for (std::size_t t = 0; t < steps; ++t) {
    record.append(make_transfer({static_cast<std::int64_t>(t % 1024)}, {7}, {0.5F}));
  }
  std::vector<double> times;
  for (int i = 0; i < 501; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Frame frame = record.frame(steps - 1 - static_cast<std::size_t>(i) % 64);
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
    ASSERT_EQ(frame.gen_length, 1024U);
  }
  std::ranges::nth_element(times, times.begin() + 250);
  RecordProperty("median_microseconds", static_cast<int>(times[250] * 1000));
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LE(times[250], 0.1);
#endif
}

}  // namespace
}  // namespace blockscope
