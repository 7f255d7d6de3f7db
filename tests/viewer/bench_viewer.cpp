// Measures the viewer as it is shipped, in one process and with the default layout:
//   bench_viewer TRACE [TRACE...] [--limits] [--first]
// prints JSON; with --limits, exit code 1 when a number is beyond a generous limit (for ctest).
// --first ends after the first whole picture, so that it can be repeated quickly.
// Needs a display: xvfb-run. Times of whole frames contain the software renderer there; the times
// of the user interface don't.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_internal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "viewer/app.h"
#include "viewer/screen/png_file.h"
#include "viewer/screen/window.h"

namespace blockscope {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double clock_seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Since the kernel started this process, with its clock of 10 ms.
double process_age() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  text.erase(0, text.rfind(')') + 2);  // the name may have spaces
  std::istringstream fields(text);
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // 22: starttime
  const double start = std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return clock_seconds(CLOCK_BOOTTIME) - start;
}

double mebibytes_of(const char* name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) {
      return std::stod(line.substr(line.find_first_of("0123456789"))) / 1024.0;
    }
  }
  return 0.0;
}

/// CPU time of this thread between NewFrame and Render, frame by frame.
struct FrameTimes {
  double begin = 0.0;
  std::vector<double> milliseconds;

  void watch() {
    hook(ImGuiContextHookType_NewFramePost, [](ImGuiContext*, ImGuiContextHook* hook) {
      static_cast<FrameTimes*>(hook->UserData)->begin = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    });
    hook(ImGuiContextHookType_RenderPre, [](ImGuiContext*, ImGuiContextHook* hook) {
      auto* self = static_cast<FrameTimes*>(hook->UserData);
      self->milliseconds.push_back(1e3 * (clock_seconds(CLOCK_THREAD_CPUTIME_ID) - self->begin));
    });
  }

 private:
  void hook(ImGuiContextHookType type, ImGuiContextHookCallback callback) {
    ImGuiContextHook hook;
    hook.Type = type;
    hook.Callback = callback;
    hook.UserData = this;
    ImGui::AddContextHook(ImGui::GetCurrentContext(), &hook);
  }
};

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(at + 0.5)];
}

nlohmann::ordered_json summary(const std::vector<double>& values) {
  return {{"median", quantile(values, 0.5)},
          {"p95", quantile(values, 0.95)},
          {"max", quantile(values, 1.0)},
          {"n", values.size()}};
}

class Bench {
 public:
  Bench(const AppOptions& options, const ScreenOptions& screen)
      : app_(options, std::make_unique<Window>(screen, false)) {
    times_.watch();
  }

  nlohmann::ordered_json first_picture() {
    nlohmann::ordered_json out;
    app_.frame(0.0);
    out["first_frame_s"] = process_age();
    while (app_.model().overview() == nullptr && app_.model().problems().empty()) app_.frame(0.0);
    out["trace_open_s"] = process_age();
    settle();
    if (!app_.model().problems().empty()) throw std::runtime_error(app_.model().problems().front());
    out["first_picture_s"] = process_age();
    return out;
  }

  nlohmann::ordered_json run() {
    nlohmann::ordered_json out = first_picture();
    times_.milliseconds.clear();
    for (int i = 0; i < 200; ++i) app_.frame(0.0);
    out["interface_ms"] = summary(times_.milliseconds);
    times_.milliseconds.clear();
    out["change_ms"] = changes();
    out["interface_while_changing_ms"] = summary(times_.milliseconds);
    out["scrub_to_picture_ms"] = scrub();
    out["idle_cpu_percent"] = idle();
    out["rss_mib"] = mebibytes_of("VmRSS");
    out["rss_peak_mib"] = mebibytes_of("VmHWM");
    out["cache_mib"] = static_cast<double>(app_.model().data().cached_bytes()) / 1048576.0;
    return out;
  }

 private:
  bool loading() {
    bool opening = app_.model().data().busy();
    for (const OpenDocument& document : app_.model().documents()) {
      opening = opening || document.state == OpenState::opening;
    }
    return opening;
  }

  /// Until a frame was drawn with all values. The first frame only requests them.
  void settle() {
    const auto end = Clock::now() + std::chrono::minutes(5);
    app_.frame(0.0);
    for (bool ready = false; !ready && Clock::now() < end;) {
      const bool before = loading();
      app_.frame(0.0);
      ready = !before && !loading();
    }
  }

  double until_picture() {
    const auto begin = Clock::now();
    settle();
    return 1e3 * seconds_between(begin, Clock::now());
  }

  /// Until the new picture is complete, after a change of one kind.
  nlohmann::ordered_json changes() {
    ViewModel& model = app_.model();
    std::vector<double> steps, layers, heads;
    for (int i = 0; i < 12; ++i) {
      model.move_step(1);
      steps.push_back(until_picture());
      Selection to = model.selection();
      to.layer += 1;
      model.select(to);
      layers.push_back(until_picture());
      to.head += 1;
      model.select(to);
      heads.push_back(until_picture());
    }
    return {{"step", summary(steps)}, {"layer", summary(layers)}, {"head", summary(heads)}};
  }

  /// Through steps and layers as fast as frames go; then until the last one's picture is complete.
  double scrub() {
    ViewModel& model = app_.model();
    model.move_step(-1'000'000);
    for (int i = 0; i < 60; ++i) {
      Selection to = model.selection();
      to.layer = static_cast<std::size_t>(i) % model.overview()->info.meta.layers.size();
      model.select(to);
      model.move_step(i % 3 == 0 ? 1 : 0);
      app_.frame(0.0);
    }
    return until_picture();
  }

  /// Of one core, with nothing to do, everything counted (all threads, the renderer).
  double idle() {
    settle();
    double share = 0.0;
    std::thread watch([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the last frames
      const auto begin = Clock::now();
      const double before = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
      std::this_thread::sleep_for(std::chrono::seconds(6));
      share =
          (clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - before) / seconds_between(begin, Clock::now());
      stop_ = true;
      app_.screen().wake();
    });
    while (!stop_) app_.wait_and_draw();
    watch.join();
    return 100.0 * share;
  }

  App app_;
  FrameTimes times_;
  std::atomic<bool> stop_ = false;
};

struct Limit {
  const char* path;  // JSON pointer
  double most;
};
// Several times what is measured on an idle machine: tests share theirs.
constexpr std::array<Limit, 6> kLimits = {{{"/first_picture_s", 10.0},
                                           {"/interface_ms/p95", 20.0},
                                           {"/change_ms/step/median", 1000.0},
                                           {"/scrub_to_picture_ms", 3000.0},
                                           {"/idle_cpu_percent", 15.0},
                                           {"/rss_peak_mib", 700.0}}};

int check(const nlohmann::ordered_json& measured) {
  int beyond = 0;
  for (const Limit& limit : kLimits) {
    const double value = measured.at(nlohmann::ordered_json::json_pointer(limit.path));
    if (value <= limit.most) continue;
    std::cerr << fmt::format("{}: {} is beyond the limit {}\n", limit.path, value, limit.most);
    beyond = 1;
  }
  return beyond;
}

/// As OpenGL draws it, with everything that a person sees.
void save_picture(const AppOptions& options, const ScreenOptions& screen, const std::string& path) {
  App app(options, std::make_unique<Window>(screen, false));
  Image image;
  for (int quiet = 0; quiet < 5;) {
    app.frame(0.01, &image);
    quiet = app.model().overview() == nullptr || app.model().data().busy() ? 0 : quiet + 1;
  }
  OutputFile file(path, true);
  write_png(file, image.width, image.height, image.rgba);
  file.commit();
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  CLI::App flags("Measures the viewer on traces.");
  blockscope::AppOptions options;
  blockscope::ScreenOptions screen{.scale = 1.0F};
  bool limits = false;
  bool first = false;
  std::string picture;
  flags.add_option("traces", options.traces)->required();
  flags.add_flag("--limits", limits, "exit code 1 beyond generous limits");
  flags.add_flag("--first", first, "end after the first whole picture")->excludes("--limits");
  flags.add_option("--select", options.select);
  flags.add_option("--width", screen.width);
  flags.add_option("--height", screen.height);
  flags.add_option("--picture", picture, "write the window's first picture (PNG), and measure nothing");
  CLI11_PARSE(flags, argc, argv);
  try {
    if (!picture.empty()) {
      blockscope::save_picture(options, screen, picture);
      return 0;
    }
    blockscope::Bench bench(options, screen);
    const auto measured = first ? bench.first_picture() : bench.run();
    std::cout << measured.dump(2) << '\n';
    return limits ? blockscope::check(measured) : 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
