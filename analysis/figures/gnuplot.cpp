#include "analysis/figures/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "analysis/figures/figure_style.h"
#include "analysis/figures/svg.h"
#include "decode_record/base/cores.h"
#include "decode_record/base/error.h"
#include "decode_record/files/scratch_folder.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
constexpr double kPixelsPerInch = 96.0;
constexpr std::string_view kFont = "sans-serif";
constexpr int kFontPixels = 12;
/// Points in PDF and PNG: 12 px are 9 pt, but cairo's "Sans" is wider than browsers' sans-serif.
constexpr int kFontPoints = 8;

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) throw Error(fmt::format("{}: writing failed: is the disk full?", path.string()));
}

std::string read_text(const fs::path& path) {
  const std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool is_file_name(std::string_view name, std::string_view more) {
  return !name.empty() && std::ranges::all_of(name, [more](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           more.find(c) != std::string_view::npos;
  });
}

void check_figure(const Figure& figure) {
  const bool data_named = std::ranges::all_of(figure.data, [](const FigureData& data) {
    return is_file_name(data.file, ".") && data.file[0] != '.';
  });
  if (!is_file_name(figure.name, "") || !data_named) {
    throw Error(fmt::format("figure '{}': expected file names of a-z, 0-9, _ and -", figure.name));
  }
  if (figure.width < 1 || figure.height < 1 || figure.width > 10000 || figure.height > 20000) {
    throw Error(fmt::format("figure '{}': expected 1 x 1 to 10000 x 20000 pixels, got {} x {}",
                            figure.name, figure.width, figure.height));
  }
}

std::string format_script(const std::string& terminal, const std::string& output) {
  return fmt::format(
      "reset\nset terminal {}\nset output '{}'\nload 'style.gp'\n"
      "load 'figure.gp'\nunset multiplot\nunset output\n",
      terminal, output);
}

/// One process draws all formats, because a start costs as much as a small figure.
std::string main_script(const Figure& figure, const FigureFormats& formats) {
  std::string script;
  const std::string size = fmt::format("{},{}", figure.width, figure.height);
  if (formats.svg) {
    script += format_script(fmt::format("svg enhanced size {} font '{},{}' background 'white'",
                                        size, kFont, kFontPixels),
                            "out.svg");
  }
  if (formats.pdf) {
    script += format_script(
        fmt::format("pdfcairo enhanced color size {:.4f}in,{:.4f}in font 'Sans,{}' fontscale 1 "
                    "linewidth 1.2",
                    figure.width / kPixelsPerInch, figure.height / kPixelsPerInch, kFontPoints),
        "out.pdf");
  }
  if (formats.png) {
    script += format_script(fmt::format("pngcairo enhanced size {} font 'Sans,{}' "
                                        "background 'white'",
                                        size, kFontPoints),
                            "out.png");
  }
  return script;
}

/// Harmless messages: those of libraries on a machine without fonts or a home folder, and those
/// about NaN, which marks a value without measurements.
bool is_noise(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos ||
         line.starts_with("Fontconfig ") || line.find("Pango-WARNING") != std::string_view::npos ||
         line.find("dconf-") != std::string_view::npos ||
         line.ends_with("warning: Skipping data file with no valid points") ||
         line.ends_with("warning: matrix contains missing or undefined values");
}

std::string complaints(const fs::path& file) {
  std::istringstream lines(read_text(file));
  std::string text;
  std::string line;
  while (std::getline(lines, line)) {
    if (is_noise(line)) continue;
    text += (text.empty() ? "" : " | ") + printable_utf8(line);
  }
  constexpr std::size_t kShown = 600;
  return text.size() > kShown ? printable_utf8(text.substr(0, kShown)) + " ..." : text;
}

class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

/// The child gets its own process group, so Ctrl-C reaches only this process, which decides when to
/// stop.
class OwnGroup {
 public:
  OwnGroup() {
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP);
  }
  ~OwnGroup() { posix_spawnattr_destroy(&attributes_); }
  OwnGroup(const OwnGroup&) = delete;
  OwnGroup& operator=(const OwnGroup&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

/// In single quotes gnuplot takes every other character as it is.
std::string change_folder(const fs::path& folder) {
  std::string quoted;
  for (const char c : folder.string()) quoted += c == '\'' ? "''" : std::string(1, c);
  return "cd '" + quoted + "'";
}

/// Starts `program main.gp`, which first goes to `folder`, with a minimal environment. A user's
/// locale, ~/.gnuplot or GNUTERM can't change a figure.
pid_t start(const std::string& program, const fs::path& folder) {
  FileActions actions;
  const OwnGroup group;
  posix_spawn_file_actions_addopen(actions.get(), STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(actions.get(), STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  const auto errors = folder / "stderr.txt";
  posix_spawn_file_actions_addopen(actions.get(), STDERR_FILENO, errors.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  // posix_spawn can change the folder only since glibc 2.29, and wheels run on older ones.
  std::array<std::string, 5> arguments{program, "-d", "-e", change_folder(folder), "main.gp"};
  // Versions of cairo that know SOURCE_DATE_EPOCH take the PDF's date from it.
  std::array<std::string, 4> environment{"LC_ALL=C.UTF-8", "PATH=/usr/bin:/bin",
                                         "HOME=" + folder.string(), "SOURCE_DATE_EPOCH=0"};
  std::array<char*, 6> argv{};
  std::ranges::transform(arguments, argv.begin(), [](std::string& text) { return text.data(); });
  std::array<char*, 5> envp{environment[0].data(), environment[1].data(), environment[2].data(),
                            environment[3].data(), nullptr};
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, program.c_str(), actions.get(), group.get(), argv.data(), envp.data());
  if (failed != 0) {
    throw Error(fmt::format("{}: can't be started: {}", program, std::strerror(failed)));
  }
  return child;
}

/// Exit status of `child` from waitpid, or -1 if it had to be killed after `timeout`.
int wait_for(pid_t child, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = std::chrono::milliseconds(1);
  int status = 0;
  while (true) {
    const pid_t done = waitpid(child, &status, WNOHANG);
    if (done == child) return status;
    if (done < 0 && errno != EINTR) {
      throw Error(fmt::format("waiting for gnuplot failed: {}", std::strerror(errno)));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(16));
  }
}

void check_outcome(const Figure& figure, int status, const fs::path& errors,
                   std::chrono::milliseconds timeout) {
  if (status == -1) {
    throw Error(fmt::format("figure '{}': gnuplot ran longer than {} s and was stopped",
                            figure.name, static_cast<double>(timeout.count()) / 1000.0));
  }
  const std::string said = complaints(errors);
  if (status == 0 && said.empty()) return;
  const std::string how = WIFSIGNALED(status)
                              ? fmt::format("was ended by signal {}", WTERMSIG(status))
                          : status == 0 ? std::string("warned")
                                        : fmt::format("failed ({})", WEXITSTATUS(status));
  throw Error(fmt::format("figure '{}': gnuplot {}: {}", figure.name, how,
                          said.empty() ? "it said nothing" : said));
}

/// Replaces the time of day that cairo 1.16 writes. A date of the same length keeps the file's
/// offsets.
std::string without_date(std::string pdf) {
  constexpr std::string_view kDate = "/CreationDate (D:";
  constexpr std::string_view kEpoch = "19700101000000";
  const std::size_t at = pdf.find(kDate);
  if (at != std::string::npos && at + kDate.size() + kEpoch.size() <= pdf.size()) {
    pdf.replace(at + kDate.size(), kEpoch.size(), kEpoch);
  }
  return pdf;
}

std::string read_output(const Figure& figure, const fs::path& path) {
  std::string text = read_text(path);
  if (text.empty()) {
    throw Error(
        fmt::format("figure '{}': gnuplot wrote no {}", figure.name, path.filename().string()));
  }
  return text;
}

std::string find_program(const GnuplotPlace& place) {
  const std::string name = place.program.empty() ? "gnuplot" : place.program;
  const auto usable = [](const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    if (usable(name)) return fs::absolute(name).string();
  } else {
    std::istringstream folders(place.search_path);
    std::string folder;
    while (std::getline(folders, folder, ':')) {
      if (!folder.empty() && usable(fs::path(folder) / name)) {
        return fs::absolute(fs::path(folder) / name).string();
      }
    }
  }
  throw Error(
      fmt::format("{}: program not found, and figures need gnuplot. HINT: install "
                  "Debian's package gnuplot-nox (scripts/setup.sh does) or conda's gnuplot, or set "
                  "BLOCKSCOPE_GNUPLOT to the program",
                  name));
}

}  // namespace

Gnuplot::Gnuplot(const GnuplotPlace& place, std::chrono::milliseconds timeout)
    : program_(find_program(place)), timeout_(timeout) {}

RenderedFigure Gnuplot::render(const Figure& figure, const FigureFormats& formats) const {
  check_figure(figure);
  const ScratchFolder folder("blockscope-figure");
  write_text(folder.path() / "style.gp", figure_style());
  write_text(folder.path() / "figure.gp", figure.script);
  write_text(folder.path() / "main.gp", main_script(figure, formats));
  for (const FigureData& data : figure.data) write_text(folder.path() / data.file, data.text);
  const int status = wait_for(start(program_, folder.path()), timeout_);
  check_outcome(figure, status, folder.path() / "stderr.txt", timeout_);
  RenderedFigure rendered;
  if (formats.svg) {
    rendered.svg =
        tidy_svg(read_output(figure, folder.path() / "out.svg"), figure.title, figure.caption);
  }
  if (formats.pdf) rendered.pdf = without_date(read_output(figure, folder.path() / "out.pdf"));
  if (formats.png) rendered.png = read_output(figure, folder.path() / "out.png");
  return rendered;
}

std::vector<RenderedFigure> Gnuplot::render_all(
    std::span<const Figure> figures, const FigureFormats& formats, std::size_t threads,
    const std::function<void(std::size_t, std::size_t)>& progress) const {
  std::vector<RenderedFigure> rendered(figures.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards done, first_error and the calls of progress
  std::size_t done = 0;
  std::exception_ptr first_error;
  const auto work = [&] {
    for (std::size_t i = next++; i < figures.size(); i = next++) {
      try {
        rendered[i] = render(figures[i], formats);
        const std::lock_guard lock(mutex);
        ++done;
        if (progress) progress(done, figures.size());
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
        next = figures.size();
      }
    }
  };
  const std::size_t cores = available_cores();
  const std::size_t wanted = std::min(threads == 0 ? cores : threads, figures.size());
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(work);
    work();
  }
  if (first_error) std::rethrow_exception(first_error);
  return rendered;
}

}  // namespace blockscope
