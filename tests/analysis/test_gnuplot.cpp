// Figures through the real gnuplot: hostile text, warnings, time limits, missing programs.
#include "analysis/figures/gnuplot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>

#include "analysis/figures/svg.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kHostile[] = {
    "plain",
    "it's",
    "'",
    "''",
    "'''''",
    "ends with '",
    "ends with \\",
    "ends with \\'",
    "\"quoted\"",
    "`touch owned`",
    "$(touch owned)",
    "@HOME",
    "back\\slash \\n",
    "{x}_y^2 &{space} ~a{.4b} @up",
    "new\nline\ttab\rreturn",
    "</script><script>alert(1)</script>",
    "</text></svg><b>&amp;",
    "'; system('touch owned'); print '",
    "%s %d %n",
    "\u05E9\u05DC\u05D5\u05DD \u202Eoverride",
    "\u6F22\u5B57 \U0001F600 e\u0301",
    "bad \xFF\xC0\xAF\xED\xA0\x80 utf8",
    "control \x01\x1B[31m\x7F",
    "",
};

Gnuplot system_gnuplot() {
  const char* path = std::getenv("PATH");
  return Gnuplot({.program = "", .search_path = path == nullptr ? "/usr/bin" : path});
}

bool has_gnuplot() {
  try {
    system_gnuplot();
    return true;
  } catch (const Error&) {
    return false;
  }
}

#define REQUIRE_GNUPLOT() \
  if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed"

Figure line_figure() {
  Figure figure;
  figure.name = "line";
  figure.title = "A line";
  figure.caption = "n = 3";
  figure.script = "set yrange [0:5]\nplot 'line.tsv' with lines title 'A_{out}'\n";
  figure.data = {{"line.tsv", data_row({1, 1}) + data_row({2, 4}) + data_row({3, 2})}};
  return figure;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// What each <text> of the drawing shows.
std::vector<std::string> texts_of(const std::string& svg) {
  std::vector<std::string> texts;
  const std::string open = "<text>";
  for (std::size_t at = svg.find(open); at != std::string::npos; at = svg.find(open, at + 1)) {
    const std::size_t start = at + open.size();
    std::string text = svg.substr(start, svg.find("</text>", start) - start);
    text = std::regex_replace(text, std::regex("<[^>]*>"), "");
    text = std::regex_replace(text, std::regex("&lt;"), "<");
    text = std::regex_replace(text, std::regex("&gt;"), ">");
    texts.push_back(std::regex_replace(text, std::regex("&amp;"), "&"));
  }
  return texts;
}

TEST(GnuplotText, KeepsOrdinaryTextAndQuotesQuotes) {
  EXPECT_EQ(gnuplot_text("layer 3"), "'{}layer 3'");
  EXPECT_EQ(gnuplot_text("it's"), "'{}it''{}s'");
  EXPECT_EQ(gnuplot_text("A_out {x}"), "'{}A\\_out \\{x\\}'");
}

TEST(GnuplotText, NeverLeavesItsLiteral) {
  for (const char* text : kHostile) {
    const std::string literal = gnuplot_text(text);
    ASSERT_GE(literal.size(), 2U);
    EXPECT_EQ(literal.front(), '\'');
    EXPECT_EQ(literal.back(), '\'');
    std::string inside = literal.substr(1, literal.size() - 2);
    for (std::size_t at = 0; (at = inside.find("''", at)) != std::string::npos;) {
      inside.erase(at, 2);
    }
    EXPECT_THAT(inside, Not(HasSubstr("'"))) << text;
    EXPECT_THAT(inside, Not(HasSubstr("\n"))) << text;
  }
}

TEST(PrintableUtf8, ReplacesWhatIsInvalidByteByByte) {
  EXPECT_EQ(printable_utf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(printable_utf8("\xC0\xAF"), "\uFFFD\uFFFD");                 // overlong '/'
  EXPECT_EQ(printable_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");       // surrogate
  EXPECT_EQ(printable_utf8("\xF4\x90\x80\x80").substr(0, 3), "\uFFFD");  // above U+10FFFF
  EXPECT_EQ(printable_utf8("\xE6\xBC"), "\uFFFD\uFFFD");                 // cut off
  EXPECT_EQ(printable_utf8("\u6F22\U0001F600"), "\u6F22\U0001F600");
  EXPECT_EQ(printable_utf8("a\nb\tc"), "a b c");
  EXPECT_EQ(printable_utf8("\x1B[0m\u202E"), "\uFFFD[0m\uFFFD");
}

TEST(DataRow, WritesNaNForWhatIsNotFinite) {
  EXPECT_EQ(data_row({1.0, 0.25, std::nan(""), std::numeric_limits<double>::infinity()}),
            "1\t0.25\tNaN\tNaN\n");
}

TEST(EscapeMarkup, LeavesNoMarkup) {
  for (const char* text : kHostile) {
    const std::string escaped = escape_markup(text);
    EXPECT_EQ(escaped.find_first_of("<>\"'"), std::string::npos) << escaped;
  }
  EXPECT_EQ(escape_markup("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
}

TEST(Gnuplot, DrawsAllFormats) {
  REQUIRE_GNUPLOT();
  const RenderedFigure drawn = system_gnuplot().render(line_figure(), {true, true, true});
  EXPECT_THAT(drawn.svg, AllOf(HasSubstr("<title>A line</title>"), HasSubstr("<desc>n = 3</desc>"),
                               HasSubstr("sans-serif"), HasSubstr("</svg>")));
  EXPECT_EQ(drawn.pdf.substr(0, 5), "%PDF-");
  EXPECT_EQ(drawn.png.substr(1, 3), "PNG");
}

TEST(Gnuplot, DrawsTheSameBytesAgain) {
  REQUIRE_GNUPLOT();
  const RenderedFigure first = system_gnuplot().render(line_figure());
  const RenderedFigure again = system_gnuplot().render(line_figure());
  EXPECT_EQ(first.svg, again.svg);
  EXPECT_EQ(first.pdf, again.pdf);
  EXPECT_THAT(first.pdf, HasSubstr("/CreationDate (D:19700101000000"));
}

TEST(Gnuplot, ShowsHostileTextAsItIs) {
  REQUIRE_GNUPLOT();
  const fs::path owned = fs::current_path() / "owned";
  ASSERT_FALSE(fs::exists(owned));
  for (const char* text : kHostile) {
    Figure figure = line_figure();
    figure.title = text;
    figure.caption = text;
    figure.script = "set yrange [0:5]\nset xlabel " + gnuplot_text(text) + "\nset title " +
                    gnuplot_text(text) + "\nplot 'line.tsv' with lines title " +
                    gnuplot_text(text) + "\n";
    const RenderedFigure drawn = system_gnuplot().render(figure);
    EXPECT_THAT(drawn.svg, HasSubstr("<title>" + escape_markup(text) + "</title>"));
    EXPECT_THAT(drawn.svg, Not(HasSubstr("<script"))) << text;
    if (*text != '\0') {
      EXPECT_THAT(texts_of(drawn.svg), Contains(printable_utf8(text)).Times(3));
    }
    EXPECT_THAT(drawn.svg, Not(HasSubstr("<b>"))) << text;
  }
  EXPECT_FALSE(fs::exists(owned)) << "text was run as a command";
}

TEST(Gnuplot, TurnsErrorsAndWarningsIntoErrors) {
  REQUIRE_GNUPLOT();
  Figure broken = line_figure();
  broken.script = "plot 'missing.tsv' with lines\n";
  EXPECT_THAT(error_of([&] { system_gnuplot().render(broken); }),
              AllOf(HasSubstr("figure 'line'"), HasSubstr("missing.tsv")));
  Figure empty = line_figure();
  empty.script = "plot 'line.tsv' with lines\n";
  empty.data[0].text = data_row({1, 2}) + data_row({2, 2});
  EXPECT_THAT(error_of([&] { system_gnuplot().render(empty); }), HasSubstr("empty y range"));
  Figure syntax = line_figure();
  syntax.script = "plot with with\n";
  EXPECT_THAT(error_of([&] { system_gnuplot().render(syntax); }), HasSubstr("failed"));
}

TEST(Gnuplot, StopsAScriptThatTakesTooLong) {
  REQUIRE_GNUPLOT();
  const Gnuplot impatient({.program = system_gnuplot().program(), .search_path = ""},
                          std::chrono::milliseconds(300));
  Figure figure = line_figure();
  figure.script = "while (1) { x = 1 }\n";
  EXPECT_THAT(error_of([&] { impatient.render(figure); }), HasSubstr("longer than 0.3 s"));
}

TEST(Gnuplot, NamesThePackageWhenItIsMissing) {
  EXPECT_THAT(error_of([] { Gnuplot({.program = "", .search_path = "/nowhere"}); }),
              AllOf(HasSubstr("gnuplot-nox"), HasSubstr("BLOCKSCOPE_GNUPLOT")));
  EXPECT_THAT(error_of([] { Gnuplot({.program = "/nowhere/gnuplot", .search_path = "/bin"}); }),
              HasSubstr("/nowhere/gnuplot"));
}

TEST(Gnuplot, ReportsAProgramThatIsNotGnuplot) {
  const Gnuplot other({.program = "/bin/false", .search_path = ""});
  EXPECT_THAT(error_of([&] { other.render(line_figure()); }), HasSubstr("failed (1)"));
  const Gnuplot silent({.program = "/bin/true", .search_path = ""});
  EXPECT_THAT(error_of([&] { silent.render(line_figure()); }), HasSubstr("wrote no out.svg"));
}

TEST(Gnuplot, RefusesNamesThatLeaveTheFolder) {
  REQUIRE_GNUPLOT();
  for (const char* name : {"", "../up", "a b", "/etc/passwd", ".hidden"}) {
    Figure figure = line_figure();
    figure.data[0].file = name;
    EXPECT_THROW(system_gnuplot().render(figure), Error) << name;
    figure = line_figure();
    figure.name = name;
    EXPECT_THROW(system_gnuplot().render(figure), Error) << name;
  }
}

TEST(Gnuplot, DrawsManyAtATimeInOrder) {
  REQUIRE_GNUPLOT();
  std::vector<Figure> figures(7, line_figure());
  for (std::size_t i = 0; i < figures.size(); ++i) {
    figures[i].title = "figure " + std::to_string(i);
  }
  std::size_t calls = 0;
  const auto drawn = system_gnuplot().render_all(figures, {.svg = true, .pdf = false}, 3,
                                                 [&](std::size_t done, std::size_t total) {
                                                   EXPECT_EQ(done, ++calls);
                                                   EXPECT_EQ(total, 7U);
                                                 });
  ASSERT_EQ(drawn.size(), 7U);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_THAT(drawn[i].svg, HasSubstr("<title>figure " + std::to_string(i) + "</title>"));
    EXPECT_TRUE(drawn[i].pdf.empty());
  }
  figures[3].script = "nonsense\n";
  EXPECT_THAT(error_of([&] { system_gnuplot().render_all(figures); }), HasSubstr("nonsense"));
}

TEST(Gnuplot, GathersHeatmapCellsAndThemesInlineDrawings) {
  REQUIRE_GNUPLOT();
  Figure figure = line_figure();
  figure.script =
      "set cbrange [0:1]\nset xrange [-0.5:19.5]\nset yrange [-0.5:19.5]\n"
      "plot 'cells.tsv' matrix with image pixels\n";
  std::string cells;
  for (int row = 0; row < 20; ++row) {
    std::vector<double> values;
    for (int column = 0; column < 20; ++column) values.push_back(row * column / 361.0);
    cells += data_row(values);
  }
  figure.data = {{"cells.tsv", cells}};
  const RenderedFigure drawn = system_gnuplot().render(figure);
  EXPECT_THAT(drawn.svg, Not(HasSubstr("<polygon fill = ")));
  EXPECT_THAT(drawn.svg, Not(HasSubstr("<image")));
  const std::string part = inline_svg(drawn.svg, "f1");
  EXPECT_THAT(part, AllOf(HasSubstr("currentColor"), HasSubstr("id=\"f1-gnuplot_canvas\""),
                          HasSubstr("aria-label=\"A line\""), Not(HasSubstr("<?xml")),
                          Not(HasSubstr("rgb(  0,   0,   0)")), Not(HasSubstr("=\"black\"")),
                          Not(HasSubstr("http"))));
  EXPECT_THROW(inline_svg("<svg></svg>", "f1"), Error);
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Gnuplot, GivesMarkersFillsOfTheirOwn) {
  REQUIRE_GNUPLOT();
  for (int type = 1; type <= 15; ++type) {
    Figure figure = line_figure();
    figure.script = "set yrange [0:5]\nplot 'line.tsv' with linespoints pointtype " +
                    std::to_string(type) + " linecolor rgb '#0072B2'\n";
    const std::string svg = system_gnuplot().render(figure).svg;
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("<use")), Not(HasSubstr("gpPt")))) << type;
    EXPECT_EQ(occurrences(svg, "<path class='point'"), 3U) << type;
    const bool filled = occurrences(svg, "fill='rgb(0,114,178)' stroke='none'") == 3;
    const bool open = occurrences(svg, "fill='none' stroke='rgb(0,114,178)'") == 3;
    EXPECT_NE(filled, open) << type;
    EXPECT_EQ(filled, type >= 5 && type % 2 == 1) << type;
  }
}

}  // namespace
}  // namespace blockscope
