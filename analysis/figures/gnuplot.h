// Figures as vector graphics, drawn by Debian's gnuplot (package gnuplot-nox). A figure is a
// gnuplot script with data files. It never passes through a shell. Text from a trace goes through
// gnuplot_text() or a data file.
//
//   const Gnuplot gnuplot(gnuplot_place());             // cli/environment.h
//   Figure figure{.name = "recall", .title = "Recall over steps", .caption = "n = 96 blocks"};
//   figure.script = "plot 'recall.tsv' with lines\n";
//   figure.data = {{"recall.tsv", data_row({1, 0.9}) + data_row({2, 0.8})}};
//   write_file(path, gnuplot.render(figure, {.svg = false, .pdf = true}).pdf);
//
// The same figure always gives the same bytes, without dates or names of users and machines.
#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

struct FigureData {
  std::string file;  ///< name in the figure's folder, such as "recall.tsv"
  std::string text;
};

struct Figure {
  std::string name;     ///< file name without ending: [a-z0-9_-]
  std::string title;    ///< plain text, for the page and the SVG's <title>; not drawn
  std::string caption;  ///< plain text with n, the number of terms; the SVG's <desc>
  int width = 640;      ///< CSS pixels, 96 to an inch
  int height = 400;
  /// Commands after `set terminal` and `set output`. figure_style() has already set borders, grid,
  /// fonts, the palette and the line styles of palette.h.
  std::string script;
  std::vector<FigureData> data;
};

struct FigureFormats {
  bool svg = true;
  bool pdf = true;
  bool png = false;
};

/// Whole files; empty for a format that was not requested.
struct RenderedFigure {
  std::string svg;  ///< UTF-8, text as text, generic font family, white background
  std::string pdf;
  std::string png;
};

/// Where to look for the program. Filled in by cli/, the only part that reads environment
/// variables.
struct GnuplotPlace {
  std::string program;      ///< a path or a name in search_path; BLOCKSCOPE_GNUPLOT; empty: gnuplot
  std::string search_path;  ///< PATH
};

class Gnuplot {
 public:
  /// Throws Error with the name of the Debian package if the program is missing.
  explicit Gnuplot(const GnuplotPlace& place,
                   std::chrono::milliseconds timeout = std::chrono::seconds(60));

  const std::string& program() const { return program_; }
  /// Throws Error with the figure's name and gnuplot's own words if gnuplot fails, warns or runs
  /// longer than the timeout. A warning counts, because the figure may be wrong.
  RenderedFigure render(const Figure& figure, const FigureFormats& formats = {}) const;
  /// Renders with `threads` processes at a time (0: one per core). Results keep the figures' order.
  /// After an error it starts no other figure and throws the first error. Worker threads call
  /// `progress`, one at a time, with the figures done and all figures. An exception from `progress`
  /// counts as an error.
  std::vector<RenderedFigure> render_all(
      std::span<const Figure> figures, const FigureFormats& formats = {}, std::size_t threads = 0,
      const std::function<void(std::size_t, std::size_t)>& progress = {}) const;

 private:
  std::string program_;
  std::chrono::milliseconds timeout_;
};

/// A gnuplot string literal, for enhanced text (the default), that shows any `text` as it is:
/// quotes, backslashes, backquotes and `{}^_@&~` too. Control characters become spaces, invalid
/// UTF-8 becomes U+FFFD.
std::string gnuplot_text(std::string_view text);

/// One line of a data file: numbers separated by tabs, "NaN" for a value that is not finite.
std::string data_row(std::initializer_list<double> values);
std::string data_row(std::span<const double> values);

/// Valid UTF-8 without control characters. Newline and tab become spaces. Other control characters,
/// unpaired bidirectional overrides and invalid bytes become U+FFFD.
std::string printable_utf8(std::string_view text);

}  // namespace blockscope
