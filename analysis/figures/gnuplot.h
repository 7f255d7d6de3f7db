// Figures as vector graphics, drawn by Debian's gnuplot (package gnuplot-nox). A figure is a piece
// of gnuplot script with its data as files; nothing of it ever passes a shell, and text that comes
// from a trace goes through gnuplot_text() or a data file.
//
//   const Gnuplot gnuplot(gnuplot_place());             // cli/environment.h
//   Figure figure{.name = "recall", .title = "Recall over steps", .caption = "n = 96 blocks"};
//   figure.script = "plot 'recall.tsv' with lines\n";
//   figure.data = {{"recall.tsv", data_row({1, 0.9}) + data_row({2, 0.8})}};
//   write_file(path, gnuplot.render(figure, {.svg = false, .pdf = true}).pdf);
//
// The same figure gives the same bytes: no dates, no names of users or machines.
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
  std::string title;    ///< plain text; not drawn, the page and the SVG's <title> show it
  std::string caption;  ///< plain text with n, the number of terms; the SVG's <desc>
  int width = 640;      ///< CSS pixels, 96 to an inch
  int height = 400;
  /// Commands after `set terminal` and `set output`. Starts from figure_style(): borders, grid,
  /// fonts, the palette and the line styles of palette.h are set.
  std::string script;
  std::vector<FigureData> data;
};

struct FigureFormats {
  bool svg = true;
  bool pdf = true;
  bool png = false;
};

/// Whole files; empty where the format was not asked for.
struct RenderedFigure {
  std::string svg;  ///< UTF-8, text as text, generic font family, white background
  std::string pdf;
  std::string png;
};

/// Where to look for the program: filled in by cli/, which alone reads environment variables.
struct GnuplotPlace {
  std::string program;      ///< a path or a name in search_path; BLOCKSCOPE_GNUPLOT; empty: gnuplot
  std::string search_path;  ///< PATH
};

class Gnuplot {
 public:
  /// Throws Error naming the Debian package when there is no such program.
  explicit Gnuplot(const GnuplotPlace& place,
                   std::chrono::milliseconds timeout = std::chrono::seconds(60));

  const std::string& program() const { return program_; }
  /// Throws Error with the figure's name and gnuplot's own words when it fails, prints a warning
  /// (a warning is a figure that doesn't show what it should) or runs longer than the timeout.
  RenderedFigure render(const Figure& figure, const FigureFormats& formats = {}) const;
  /// Several processes at a time (`threads`; 0: one per core); results in the figures' order. After
  /// an error no further figure is begun and the first error is thrown. `progress` is called from
  /// the calling thread's workers, one at a time, with figures done and in all; what it throws ends
  /// the drawing like an error.
  std::vector<RenderedFigure> render_all(
      std::span<const Figure> figures, const FigureFormats& formats = {}, std::size_t threads = 0,
      const std::function<void(std::size_t, std::size_t)>& progress = {}) const;

 private:
  std::string program_;
  std::chrono::milliseconds timeout_;
};

/// A gnuplot string literal, for enhanced text (the default), that shows `text` as it is, whatever
/// it holds: quotes, backslashes, backquotes, `{}^_@&~` of enhanced text, control characters (shown
/// as spaces), invalid UTF-8 (shown as U+FFFD).
std::string gnuplot_text(std::string_view text);

/// One line of a data file: numbers separated by tabs, "NaN" for what is not finite.
std::string data_row(std::initializer_list<double> values);
std::string data_row(std::span<const double> values);

/// Valid UTF-8 without control characters: newline and tab become spaces, other control
/// characters, unpaired bidirectional overrides and invalid bytes U+FFFD.
std::string printable_utf8(std::string_view text);

}  // namespace blockscope
