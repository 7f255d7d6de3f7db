#include "viewer/view_command.h"

#include <fmt/format.h>

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>

#include "analysis/results/read_csv.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "command_line/text_output.h"
#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "decode_record/read/trace_reader.h"
#include "viewer/app.h"
#include "viewer/model/panel_metrics.h"
#include "viewer/panels/show_text.h"
#include "viewer/screen/headless_screen.h"
#include "viewer/screen/png_file.h"
#include "viewer/screen/window.h"
#include "viewer/serve/page_access.h"
#include "viewer/serve/remote_screen.h"
#include "viewer/serve/server.h"

namespace blockscope {
namespace {

struct ViewFlags {
  std::vector<std::string> traces;
  std::string screenshot;
  std::string csv;
  std::vector<std::string> panels;
  std::string select;
  std::string reuse;
  std::string lens;
  std::string metrics;
  std::string show;
  std::string colormap;
  bool light = false;
  bool dark = false;
  bool force = false;
  int width = 1440;
  int height = 900;
  float scale = 0.0F;
  double patience = 60.0;
  std::size_t cache_mib = 0;
  std::optional<std::string> serve;  ///< a port, or empty: a free one
  std::string listen = "127.0.0.1";
  std::vector<std::string> hosts;
  bool allow_save = false;
};

std::string table_text(const ViewFlags& flags, App& app) {
  const auto table = app.table(flags.panels.front());
  if (!table) {
    throw Error(fmt::format(
        "{}: panel {} shows no numbers for this trace (--csv). HINT: --screenshot shows why",
        flags.traces.front(), flags.panels.front()));
  }
  return table->text();
}

/// A window's buffers take 15 to 20 bytes a pixel: at most 650 MB.
constexpr std::int64_t kMostPixels = std::int64_t{8192} * 4096;

void check_size(const ViewFlags& flags) {
  const std::int64_t pixels = std::int64_t{flags.width} * flags.height;
  if (pixels <= kMostPixels) return;
  throw UsageError(fmt::format(
      "--width, --height: expected at most {} pixels (8192 x 4096), got {} x {} = {}: the "
      "window alone would take {:.1f} GB. HINT: choose a smaller size or fewer panels",
      kMostPixels, flags.width, flags.height, pixels, static_cast<double>(pixels) * 17.0 / 1e9));
}

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
}

/// `view --serve run.h5`: the word after --serve is a port only if it is a number.
void separate_port(ViewFlags& flags) {
  if (!flags.serve || flags.serve->empty() || is_number(*flags.serve)) return;
  flags.traces.insert(flags.traces.begin(), *flags.serve);
  flags.serve->clear();
}

std::string machine_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "THIS_MACHINE";
}

/// The folder that holds all of these files and folders: names of traces are shown without it.
std::string common_folder(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  fs::path common;
  for (const std::string& path : paths) {
    fs::path folder = fs::absolute(path).lexically_normal();
    if (!fs::is_directory(folder)) folder = folder.parent_path();
    if (common.empty()) common = folder;
    const auto [end, ignored] =
        std::mismatch(common.begin(), common.end(), folder.begin(), folder.end());
    fs::path shared;
    for (auto part = common.begin(); part != end; ++part) shared /= *part;
    common = shared;
  }
  return common.string();
}

AppOptions app_options(const ViewFlags& flags) {
  AppOptions options;
  options.traces = flags.traces;
  options.panels = flags.panels;
  options.select = flags.select;
  options.reuse = flags.reuse;
  options.lens = flags.lens;
  options.show = flags.show;
  options.colormap = flags.colormap;
  if (flags.light || flags.dark) options.dark = flags.dark;
  options.cache_bytes = flags.cache_mib << 20U;
  if (!flags.metrics.empty()) {
    add_panel_metrics(read_results_csv(flags.metrics), flags.metrics);
  }
  return options;
}

void run_server(const ViewFlags& flags) {
  if (flags.traces.empty()) {
    throw UsageError("--serve: expected trace files or a folder, got none");
  }
  int port = 0;
  if (!flags.serve->empty()) {
    const auto end = flags.serve->data() + flags.serve->size();
    const auto read = std::from_chars(flags.serve->data(), end, port);
    if (read.ec != std::errc{} || port < 1 || port > 65535) {
      throw UsageError(
          fmt::format("--serve: expected a port from 1 to 65535, got {}", *flags.serve));
    }
  }
  for (const std::string& host : flags.hosts) {
    const bool plain = !host.empty() && std::ranges::all_of(host, [](unsigned char letter) {
      return std::isalnum(letter) || letter == '.' || letter == '-' || letter == '_';
    });
    if (!plain && host != "*" && !host.starts_with('[')) {
      throw UsageError(fmt::format(
          "--host: expected a host name without scheme, port and path, or *, got '{}'", host));
    }
  }
  AppOptions options = app_options(flags);
  options.traces.clear();
  { const App checked(options, std::make_unique<HeadlessScreen>(ScreenOptions())); }  // mistakes
  for (const std::string& path : flags.traces) {
    if (std::filesystem::is_directory(path)) continue;
    const TraceReader reader(path);  // a mistyped name is reported here
    options.traces.push_back(path);
  }
  Served served;
  served.may_save = flags.allow_save;
  served.traces = [given = flags.traces] { return traces_of(given); };
  served.folder = common_folder(flags.traces);
  options.served = served;
  ServeOptions server;
  server.port = port;
  server.listen = flags.listen;
  server.hosts = flags.hosts;
  server.secret = random_secret();
  server.view = [&](int socket) {
    ScreenOptions size;
    size.scale = flags.scale;
    App(options, std::make_unique<RemoteScreen>(size, socket)).run();
  };
  server.ready = [&](int bound) {
    const bool beyond = !is_loopback(flags.listen);
    if (beyond) {
      note(
          "blockscope: warning: whoever reaches {} and has the link can look at these traces. "
          "Nothing is encrypted.\n",
          flags.listen);
    }
    const std::string address = flags.listen == "0.0.0.0" ? machine_name() : flags.listen;
    say("http://{}:{}/?key={}\n", address, bound, server.secret);
    const PrintedState printed = flush_standard_output();
    if (!printed.whole) {
      throw Error(fmt::format("view --serve: the link can't be printed: {}", printed.problem));
    }
    note("Open this link in a browser. Ctrl+C ends the viewer.\n");
    if (!beyond) {
      note("From another computer, first run there: ssh -L {0}:{1}:{0} {2}\n", bound, flags.listen,
           machine_name());
    }
  };
  const InterruptGuard guard;
  serve(server);
  InterruptGuard::check("every page is closed");
}

void run_view(const ViewFlags& flags, const std::string& config_folder) {
  if (flags.serve) return run_server(flags);
  check_size(flags);
  const bool picture = !flags.screenshot.empty() || !flags.csv.empty();
  // On a signal, a window ends at once and loses nothing. A picture must first remove its partial
  // file.
  std::optional<InterruptGuard> guard;
  if (picture) guard.emplace();
  CommandFiles files;
  for (const std::string& trace : flags.traces) files.reads_trace(trace);
  files.reads(flags.reuse);
  files.reads(flags.lens);
  files.reads(flags.metrics);
  std::optional<OutputFile> screenshot;
  std::optional<TextOutput> csv;
  if (!flags.screenshot.empty()) screenshot = files.open(flags.screenshot, flags.force);
  const std::string ending = std::filesystem::path(flags.screenshot).extension().string();
  if (!ending.empty() && ending != ".png" && ending != ".PNG") {
    throw UsageError(
        fmt::format("--screenshot: expected a PNG file, got {}. HINT: end its name with .png; "
                    "`blockscope report --figures` writes SVG and PDF",
                    flags.screenshot));
  }
  if (!flags.csv.empty()) csv.emplace(files, flags.csv, flags.force);
  if (picture && flags.traces.empty())
    throw UsageError("--screenshot, --csv: expected a trace file, got none");
  // Opens every trace before the window, so the command line reports a mistyped name.
  for (const std::string& trace : flags.traces) {
    const TraceReader reader(trace);
    if (picture && reader.info().num_rows == 0) {
      throw Error(fmt::format(
          "{}: no row is committed yet, so there is nothing to show. HINT: wait for the run's "
          "first step, or run `blockscope info` to see what the trace holds",
          trace));
    }
  }
  if (!flags.csv.empty() && flags.panels.size() != 1) {
    throw UsageError(fmt::format("--csv: expected one panel. HINT: add --panel with one of {}",
                                 CLI::detail::join(panel_names(), ", ")));
  }
  AppOptions options = app_options(flags);
  ScreenOptions size{flags.width, flags.height, flags.scale, ""};
  if (!picture && !config_folder.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(config_folder, ignored);
    size.ini_file = config_folder + "/layout.ini";
    options.config_folder = config_folder;
  }
  if (!picture) return App(options, std::make_unique<Window>(size)).run();
  App app(options, std::make_unique<HeadlessScreen>(size));
  const Image image = app.picture(flags.patience);
  const std::string table = csv ? table_text(flags, app) : "";
  if (csv && !csv->is_standard_output()) csv->write(table);
  if (screenshot) {
    write_png(*screenshot, image.width, image.height, image.rgba);
    screenshot->commit();
  }
  if (csv) csv->commit();
  if (csv && csv->is_standard_output()) csv->write(table);
}

}  // namespace

void add_view_command(CLI::App& app, const std::string& config_folder) {
  auto* command =
      app.add_subcommand("view", "Look at traces in a window, or make pictures of them");
  auto flags = std::make_shared<ViewFlags>();
  command->add_option("traces", flags->traces,
                      "Trace files, finished or being written; with --serve also a folder");
  command
      ->add_option("--serve", flags->serve,
                   "Show the viewer in a browser, on this port of 127.0.0.1 (default: a free one)")
      ->expected(0, 1)
      ->type_name("[PORT]");
  command->add_option("--listen", flags->listen, "Address on which --serve listens")
      ->capture_default_str();
  command
      ->add_option("--host", flags->hosts,
                   "Further host names under which a proxy leads browsers to --serve; *: any")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--allow-save", flags->allow_save,
                    "Let a browser save files next to the traces");
  command->add_option("--screenshot", flags->screenshot, "Write a PNG instead of opening a window");
  command->add_option(
      "--csv", flags->csv,
      "Write the numbers of one --panel instead of opening a window (-: standard output)");
  command
      ->add_option(
          "--panel", flags->panels,
          fmt::format("Panels to show ({}); default: all", CLI::detail::join(panel_names(), ", ")))
      ->delimiter(',');
  command->add_option(
      "--select", flags->select,
      "Where to start: sequence=0,block=1,step=4,layer=3,head=2,token=5,panel=heatmap, or a link");
  command->add_option("--reuse", flags->reuse,
                      "Load this calibration file into the calibration panel");
  command->add_option("--lens", flags->lens,
                      "Load this result of `blockscope lens --json` into the lens panel");
  command->add_option("--metrics", flags->metrics,
                      "Offer the results of this CSV file in the panels heads and curves");
  command->add_option("--show", flags->show, "What the panels show: " + show_text_help());
  command->add_option(
      "--colormap", flags->colormap,
      "Colour map: viridis, magma, inferno, cividis or coolwarm; append _r to reverse it");
  auto* light = command->add_flag("--light", flags->light, "Use light colours");
  command->add_flag("--dark", flags->dark, "Use dark colours")->excludes(light);
  command->add_flag("--force", flags->force, "Replace existing files");
  command
      ->add_option("--width", flags->width,
                   "Window width in pixels; width x height is at most 33554432 (8192 x 4096)")
      ->check(whole_number(320, 16384))
      ->capture_default_str();
  command->add_option("--height", flags->height, "Window height in pixels")
      ->check(whole_number(240, 16384))
      ->capture_default_str();
  command->add_option("--scale", flags->scale, "Text scale (default: from the monitor)")
      ->check(real_number(0.5, 8.0));
  command
      ->add_option("--patience", flags->patience, "Longest wait for a picture's data, in seconds")
      ->check(real_number(0.0, kAnyReal, false))
      ->capture_default_str();
  command->add_option("--cache", flags->cache_mib, "Memory for computed results, in MiB")
      ->check(whole_number(16, 65536));
  command->footer(
      "Examples:\n  blockscope view run.h5\n  blockscope view run.h5 --serve\n"
      "  blockscope view run.h5 --screenshot fig1.png --panel heatmap "
      "--select layer=3,step=4 --width 1280 --height 800\n"
      "  blockscope view dense.h5 reuse.h5 --panel compare --csv difference.csv");
  command->callback([flags, command, config_folder] {
    refuse_idle(*command, "--patience", !flags->screenshot.empty() || !flags->csv.empty(),
                "--screenshot or --csv");
    refuse_idle(*command, "--force", !flags->screenshot.empty() || !flags->csv.empty(),
                "--screenshot or --csv");
    separate_port(*flags);
    for (const char* only : {"--listen", "--host", "--allow-save"}) {
      refuse_idle(*command, only, flags->serve.has_value(), "--serve");
    }
    for (const char* never : {"--screenshot", "--csv", "--width", "--height"}) {
      refuse_idle(*command, never, !flags->serve, "a window or a picture, not --serve");
    }
    const bool seen = !flags->screenshot.empty() || flags->csv.empty();
    for (const char* look : {"--light", "--dark", "--colormap", "--width", "--height", "--scale"}) {
      refuse_idle(*command, look, seen, "a window or --screenshot");
    }
    run_view(*flags, config_folder);
  });
}

}  // namespace blockscope
