#include "viewer/view_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "decode_record/error.h"
#include "viewer/app.h"
#include "viewer/png_file.h"

namespace blockscope {
namespace {

struct ViewFlags {
  std::vector<std::string> traces;
  std::string screenshot;
  std::vector<std::string> panels;
  std::string select;
  std::string reuse;
  std::string colormap = "viridis";
  bool light = false;
  bool force = false;
  int width = 1440;
  int height = 900;
  float scale = 0.0F;
  double patience = 60.0;
  std::size_t cache_mib = 256;
};

void run_view(const ViewFlags& flags, const std::string& config_folder) {
  const bool picture = !flags.screenshot.empty();
  if (picture && std::filesystem::exists(flags.screenshot) && !flags.force) {
    throw UsageError(fmt::format("{}: exists. HINT: --force replaces it", flags.screenshot));
  }
  if (picture && flags.traces.empty()) throw UsageError("--screenshot: which trace?");
  AppOptions options;
  options.traces = flags.traces;
  options.window.width = flags.width;
  options.window.height = flags.height;
  options.window.scale = picture && flags.scale == 0.0F ? 1.0F : flags.scale;
  options.window.visible = !picture;
  if (!picture && !config_folder.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(config_folder, ignored);
    options.window.ini_file = config_folder + "/layout.ini";
  }
  options.panels = flags.panels;
  options.select = flags.select;
  options.reuse = flags.reuse;
  options.colormap = flags.colormap;
  options.dark = !flags.light;
  options.cache_bytes = flags.cache_mib << 20U;
  App app(options);
  if (!picture) return app.run();
  const Image image = app.picture(flags.patience);
  write_png(flags.screenshot, image.width, image.height, image.rgba);
}

}  // namespace

void add_view_command(CLI::App& app, const std::string& config_folder) {
  auto* command =
      app.add_subcommand("view", "Look at traces in a window, or make pictures of them");
  auto flags = std::make_shared<ViewFlags>();
  command->add_option("traces", flags->traces, "Trace files, finished or being written");
  command->add_option("--screenshot", flags->screenshot, "Write a PNG instead of opening a window");
  command
      ->add_option(
          "--panel", flags->panels,
          fmt::format("Panels to show ({}); default: all", CLI::detail::join(panel_names(), ", ")))
      ->delimiter(',');
  command->add_option("--select", flags->select,
                      "What to show, such as sequence=0,block=1,step=4,layer=3,head=2");
  command->add_option("--reuse", flags->reuse,
                      "Calibration file to start the calibration panel with");
  command->add_option("--colormap", flags->colormap,
                      "viridis, magma, inferno, cividis or coolwarm; with _r: reversed");
  command->add_flag("--light", flags->light, "Light instead of dark");
  command->add_flag("--force", flags->force, "Replace an existing picture");
  command->add_option("--width", flags->width, "Of the window in pixels")
      ->check(CLI::Range(320, 16384));
  command->add_option("--height", flags->height, "Of the window in pixels")
      ->check(CLI::Range(240, 16384));
  command->add_option("--scale", flags->scale, "Of texts; default: the monitor's")
      ->check(CLI::Range(0.5, 8.0));
  command->add_option("--patience", flags->patience, "Seconds to wait for a picture's data");
  command->add_option("--cache", flags->cache_mib, "MiB of results to keep")
      ->check(CLI::Range(16, 65536));
  command->footer(
      "Examples:\n  blockscope view run.h5\n"
      "  xvfb-run -a blockscope view run.h5 --screenshot fig1.png --panel heatmap "
      "--select layer=3,step=4 --width 1280 --height 800");
  command->callback([flags, config_folder] { run_view(*flags, config_folder); });
}

}  // namespace blockscope
