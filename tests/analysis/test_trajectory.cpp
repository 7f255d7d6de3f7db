// The trajectory as HTML: its content and order, and vocabularies that contain markup.
#include "analysis/report/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/report/html.h"
#include "analysis/report/report.h"
#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kPieces{"plain",
                                       " spaced",
                                       "</script>",
                                       "<script>alert(1)</script>",
                                       "\"quote'",
                                       "`id`$(id)",
                                       "a\nb",
                                       "\t",
                                       "\xFF\xFE",
                                       "\xE6",
                                       "\u05D0\u05D1\u202E",
                                       "\u6F22",
                                       "&amp;",
                                       "\x01\x7F",
                                       "</td></table>",
                                       ""};

/// Two blocks of 4 positions, two tokens a step; token t has piece t % kPieces.size().
std::string write_trace(const fixture::TempDir& folder, std::int64_t first_token,
                        std::int64_t blocks = 2) {
  TraceMeta meta = fixture::small_meta(RecordLevel::trajectory, ArrayType::bf16);
  meta.pieces.clear();
  for (std::size_t i = 0; i < 100; ++i) meta.pieces.push_back(kPieces[i % kPieces.size()]);
  std::string path = folder.file("run" + std::to_string(first_token) + ".h5");
  TraceWriter writer(path, meta);
  SequenceStart start = fixture::sequence_start(0, blocks);
  start.name = "<b>name</b>";
  writer.begin_sequence(start);
  std::int64_t token = first_token;
  for (std::int64_t step = 0; step < 2 * blocks; ++step) {
    TraceRow row = fixture::denoise_row(meta, 0, step, step / 2, step % 2);
    const std::int64_t at = step * 2;
    row.delta = make_transfer({at, at + 1}, {token, token + 1}, {0.05F, 0.95F});
    token += 2;
    writer.append_row(std::move(row));
  }
  writer.end_sequence(0, {FinishReason::length, "</dd><script>text</script>", 1.0F});
  writer.finish();
  return path;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Trajectory, SaysWhichStepDecidedEachPosition) {
  const fixture::TempDir folder;
  const TraceReader trace(write_trace(folder, 0));
  const std::vector<BlockSteps> blocks = list_blocks(trace);
  ASSERT_EQ(blocks.size(), 2U);
  const TrajectoryBlock block = trajectory_of(trace, blocks[1]);
  ASSERT_EQ(block.positions.size(), 4U);
  EXPECT_EQ(block.num_steps, 2);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(block.positions[i].position, 8 + static_cast<std::int64_t>(i));
    EXPECT_EQ(block.positions[i].token, 4 + static_cast<std::int64_t>(i));
    EXPECT_EQ(block.positions[i].step, i < 2 ? 1 : 2);
    EXPECT_FLOAT_EQ(block.positions[i].confidence, i % 2 == 0 ? 0.05F : 0.95F);
  }
}

TEST(Trajectory, PutsTokensAtTheirStepWithTheirConfidence) {
  const fixture::TempDir folder;
  const TraceReader trace(write_trace(folder, 0));
  const std::string html = trajectory_html(trace, list_blocks(trace), 0);
  EXPECT_EQ(count(html, "<table"), 2U);
  EXPECT_EQ(count(html, "<td class=\"token\">"), 8U);
  EXPECT_EQ(count(html, "<td class=\"mask\" colspan=\"1\">"), 4U);     // decided in step 2 of 2
  EXPECT_EQ(count(html, "<td class=\"settled\" colspan=\"1\">"), 4U);  // decided in step 1 of 2
  EXPECT_THAT(html, HasSubstr("<bdi class=\"c0\" title=\"position 4, step 1, confidence 0.050\">"
                              "plain</bdi>"));
  EXPECT_THAT(html, HasSubstr("<bdi class=\"c9\" title=\"position 5, step 1, confidence 0.950\">"
                              "\u2423spaced</bdi>"));
}

TEST(Trajectory, ShowsTheTokenThatAnEditReplaced) {
  const fixture::TempDir folder;
  TraceMeta meta = fixture::small_meta(RecordLevel::trajectory, ArrayType::bf16);
  meta.pieces.assign(100, "");
  meta.pieces[0] = "plain";
  {
    TraceWriter writer(folder.file("edits.h5"), meta);
    writer.begin_sequence(fixture::sequence_start(0, 1));
    for (std::int64_t step = 0; step < 3; ++step) {
      TraceRow row = fixture::denoise_row(meta, 0, step, 0, step);
      row.delta = step == 0   ? make_transfer({0, 1, 2, 3}, {0, 1, 1, 1}, {.5F, .5F, .5F, .5F})
                  : step == 1 ? make_transfer({}, {}, {})
                              : make_transfer({0}, {1}, {.95F});
      writer.append_row(std::move(row));
    }
    writer.end_sequence(0, {FinishReason::length, "", 0.0F});
    writer.finish();
  }
  const TraceReader trace(folder.file("edits.h5"));
  const std::vector<BlockSteps> blocks = list_blocks(trace);
  const TrajectoryPosition item = trajectory_of(trace, blocks[0]).positions.at(0);
  EXPECT_EQ(item.token, 1);
  EXPECT_EQ(item.step, 3);
  ASSERT_EQ(item.events.size(), 2U);
  EXPECT_EQ(item.events[0].token, 0);
  EXPECT_EQ(item.events[1].kind, ChangeKind::edited);
  const std::string html = trajectory_html(trace, blocks, 0);
  EXPECT_THAT(html, HasSubstr("<td class=\"token edited\" title=\"edited, was plain\">"));
  EXPECT_THAT(html, HasSubstr(">edited</span>"));  // the legend
  EXPECT_THAT(trajectory_html(TraceReader(write_trace(folder, 0)), list_blocks(trace), 0),
              Not(HasSubstr(">edited</span>")));
}

TEST(Trajectory, NeverLetsATokenBecomeMarkup) {
  const fixture::TempDir folder;
  for (std::int64_t first = 0; first < 16; first += 8) {
    const TraceReader trace(write_trace(folder, first));
    const std::string html = trajectory_html(trace, list_blocks(trace), 0);
    EXPECT_THAT(html, Not(HasSubstr("<script")));
    EXPECT_THAT(html, Not(HasSubstr("</script")));
    EXPECT_THAT(html, Not(HasSubstr("<b>")));
    EXPECT_THAT(html, Not(HasSubstr("\u202E")));
    EXPECT_THAT(html, HasSubstr("&lt;b&gt;name&lt;/b&gt;"));
    EXPECT_EQ(count(html, "<td"), count(html, "</td>"));
    EXPECT_EQ(count(html, "<table"), count(html, "</table>"));
    EXPECT_EQ(count(html, "<bdi"), count(html, "</bdi>"));
  }
}

TEST(Trajectory, ShowsTokensThatAreNotText) {
  const fixture::TempDir folder;
  const TraceReader trace(write_trace(folder, 0));
  EXPECT_EQ(token_text(trace, 6), "a\u21B5b");
  EXPECT_EQ(token_text(trace, 8), "\uFFFD\uFFFD");
  EXPECT_EQ(token_text(trace, 9), "<E6>");
  EXPECT_EQ(token_text(trace, 15), "#15");
  EXPECT_EQ(token_text(trace, -1), "");
}

/// Two sequences of one block. The first decides nothing but tokens that end the text.
std::string write_ends(const fixture::TempDir& folder) {
  TraceMeta meta = fixture::small_meta(RecordLevel::trajectory, ArrayType::bf16);
  meta.pieces[1] = "<|endoftext|>";
  meta.pieces[2] = "</s>";
  std::string path = folder.file("ends.h5");
  TraceWriter writer(path, meta);
  const std::vector<std::vector<std::int64_t>> tokens{{1, 2, 1, 1}, {7, 1, 1, 1}};
  for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
    writer.begin_sequence(fixture::sequence_start(sequence, 1));
    for (std::int64_t step = 0; step < 2; ++step) {
      TraceRow row = fixture::denoise_row(meta, sequence, 2 * sequence + step, 0, step);
      const auto at = static_cast<std::size_t>(2 * step);
      const std::vector<std::int64_t>& of = tokens[static_cast<std::size_t>(sequence)];
      row.delta = make_transfer({2 * step, 2 * step + 1}, {of[at], of[at + 1]}, {0.5F, 0.5F});
      writer.append_row(std::move(row));
    }
    writer.end_sequence(sequence, {FinishReason::length, "text", 1.0F});
  }
  writer.finish();
  return path;
}

TEST(Trajectory, DrawsTokensThatEndATextAsOneMark) {
  const fixture::TempDir folder;
  const TraceReader trace(write_ends(folder));
  const std::vector<BlockSteps> blocks = list_blocks(trace);
  const std::string html = trajectory_html(trace, {blocks[1]}, 0);
  EXPECT_EQ(count(html, "<td class=\"token\">"), 2U);
  EXPECT_THAT(html, HasSubstr("piece7</bdi>"));
  EXPECT_THAT(html, HasSubstr("title=\"positions 6 to 8, steps 1 to 2\">&lt;|endoftext|&gt; "
                              "\u00d7 3</bdi>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">6\u20138</th>"));
}

TEST(Trajectory, APageShowsTheBlockWithTheMostText) {
  const fixture::TempDir folder;
  const ReportPage page = make_report(TraceGroup({write_ends(folder)}), {});
  const auto& part = std::get<ReportHtml>(page.sections.at(0).parts.at(0));
  EXPECT_THAT(part.html, HasSubstr("piece7"));  // not the first sequence, which has two tokens
}

TEST(Trajectory, SaysWhatItLeavesOut) {
  const fixture::TempDir folder;
  const TraceReader trace(write_trace(folder, 0, 6));
  TrajectoryLimits limits;
  limits.blocks = 2;
  limits.positions = 3;
  limits.steps = 1;
  const std::string html = trajectory_html(trace, list_blocks(trace), 1, limits);
  EXPECT_EQ(count(html, "<table"), 2U);
  EXPECT_THAT(html, HasSubstr("Shown: 2 blocks of the sequence&#39;s 6"));
  EXPECT_THAT(html, HasSubstr("first 3 of 4 positions, first 1 steps"));
  EXPECT_THAT(html, HasSubstr("Block 1:"));
  EXPECT_THAT(html, Not(HasSubstr("Block 0:")));
}

TEST(ReportNumbers, AreReadable) {
  EXPECT_EQ(report_number(0.98765), "0.9877");
  EXPECT_EQ(report_number(0.0), "0.0000");
  EXPECT_EQ(report_number(0.00001234), "1.23e-05");
  EXPECT_EQ(report_number(std::nan("")), "\u2013");
  EXPECT_EQ(count_text(1234567), "1,234,567");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(counted(1, "block", "blocks"), "1 block");
}

}  // namespace
}  // namespace blockscope
