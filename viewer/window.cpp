#include "viewer/window.h"

#include <GLFW/glfw3.h>
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_impl_glfw.h>
#include <imgui_impl_opengl3.h>
#include <imgui_impl_opengl3_loader.h>
#include <implot.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/error.h"
#include "viewer/fonts.h"

namespace blockscope {
namespace {

constexpr float kFontSize = 15.0F;

/// The last error GLFW reported. GLFW has one state per process, and so has its error callback.
std::string glfw_problem() {
  const char* text = nullptr;
  glfwGetError(&text);
  return text == nullptr ? "unknown" : text;
}

/// Like ImGuiStyle::ScaleAllSizes, for plots.
void scale_plots(float scale) {
  ImPlotStyle& style = ImPlot::GetStyle();
  style.PlotBorderSize *= scale;
  for (ImVec2* size : {&style.MajorTickLen, &style.MinorTickLen, &style.MajorTickSize,
                       &style.MinorTickSize, &style.MajorGridSize, &style.MinorGridSize,
                       &style.PlotPadding, &style.LabelPadding, &style.LegendPadding,
                       &style.LegendInnerPadding, &style.LegendSpacing, &style.AnnotationPadding}) {
    *size = ImVec2(size->x * scale, size->y * scale);
  }
}

}  // namespace

Image cropped(const Image& image, float left, float top, float width, float height) {
  const auto clamped = [](float value, int limit) {
    return std::clamp(static_cast<int>(value + 0.5F), 0, limit);
  };
  const int x0 = clamped(left, image.width);
  const int x1 = clamped(left + width, image.width);
  const int y0 = clamped(top, image.height);
  const int y1 = clamped(top + height, image.height);
  Image part{x1 - x0, y1 - y0, {}};
  for (int y = y0; y < y1; ++y) {
    const auto row = image.rgba.begin() + static_cast<std::ptrdiff_t>(y) * image.width;
    part.rgba.insert(part.rgba.end(), row + x0, row + x1);
  }
  return part;
}

Window::Window(const WindowOptions& options) : ini_file_(options.ini_file) {
  if (glfwInit() != GLFW_TRUE) {
    throw Error(fmt::format(
        "view: no display: {}. HINT: over SSH connect with `ssh -X`, or make pictures without a "
        "display: xvfb-run -a blockscope view run.h5 --screenshot out.png",
        glfw_problem()));
  }
  glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
  glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 3);
  glfwWindowHint(GLFW_OPENGL_PROFILE, GLFW_OPENGL_CORE_PROFILE);
  glfwWindowHint(GLFW_VISIBLE, options.visible ? GLFW_TRUE : GLFW_FALSE);
  window_ = glfwCreateWindow(options.width, options.height, "Blockscope", nullptr, nullptr);
  if (window_ == nullptr) {
    const std::string problem = glfw_problem();
    glfwTerminate();
    throw Error(fmt::format(
        "view: no OpenGL 3.3 window: {}. HINT: without a graphics driver, use Mesa's software "
        "renderer: install libgl1-mesa-dri and set LIBGL_ALWAYS_SOFTWARE=1",
        problem));
  }
  glfwMakeContextCurrent(window_);
  glfwSwapInterval(options.visible ? 1 : 0);
  glfwSetWindowUserPointer(window_, this);
  glfwSetDropCallback(window_, [](GLFWwindow* window, int count, const char** paths) {
    auto* self = static_cast<Window*>(glfwGetWindowUserPointer(window));
    self->dropped_.insert(self->dropped_.end(), paths, paths + count);
  });
  float monitor_scale = 1.0F;
  glfwGetWindowContentScale(window_, &monitor_scale, nullptr);
  scale_ = options.scale > 0.0F ? options.scale : std::max(1.0F, monitor_scale);

  IMGUI_CHECKVERSION();
  ImGui::CreateContext();
  ImPlot::CreateContext();
  ImGuiIO& io = ImGui::GetIO();
  io.ConfigFlags |= ImGuiConfigFlags_DockingEnable | ImGuiConfigFlags_NavEnableKeyboard;
  io.IniFilename = ini_file_.empty() ? nullptr : ini_file_.c_str();
  ImGui::GetStyle().ScaleAllSizes(scale_);
  scale_plots(scale_);
  load_fonts(find_fonts(), kFontSize * scale_);
  ImGui_ImplGlfw_InitForOpenGL(window_, true);
  gl_ready_ = ImGui_ImplOpenGL3_Init("#version 330 core");
}

Window::~Window() {
  if (gl_ready_) ImGui_ImplOpenGL3_Shutdown();
  ImGui_ImplGlfw_Shutdown();
  ImPlot::DestroyContext();
  ImGui::DestroyContext();
  glfwDestroyWindow(window_);
  glfwTerminate();
}

bool Window::should_close() const { return glfwWindowShouldClose(window_) == GLFW_TRUE; }

void Window::close() { glfwSetWindowShouldClose(window_, GLFW_TRUE); }

void Window::keep_open() { glfwSetWindowShouldClose(window_, GLFW_FALSE); }

bool Window::wait(double seconds) {
  if (seconds <= 0.0) {
    glfwPollEvents();
    return true;
  }
  const double begin = glfwGetTime();
  glfwWaitEventsTimeout(seconds);
  return glfwGetTime() - begin < seconds;
}

void Window::frame(const std::function<void()>& draw, Image* picture) {
  ImGui_ImplOpenGL3_NewFrame();
  ImGui_ImplGlfw_NewFrame();
  ImGui::NewFrame();
  draw();
  ImGui::Render();
  int width = 0;
  int height = 0;
  glfwGetFramebufferSize(window_, &width, &height);
  glViewport(0, 0, width, height);
  glClearColor(0.1F, 0.1F, 0.1F, 1.0F);
  glClear(GL_COLOR_BUFFER_BIT);
  ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
  if (picture != nullptr) *picture = read_pixels();
  glfwSwapBuffers(window_);
}

Image Window::read_pixels() const {
  Image image;
  glfwGetFramebufferSize(window_, &image.width, &image.height);
  const auto width = static_cast<std::size_t>(image.width);
  const auto height = static_cast<std::size_t>(image.height);
  image.rgba.resize(width * height);
  glPixelStorei(GL_PACK_ALIGNMENT, 4);
  glReadPixels(0, 0, image.width, image.height, GL_RGBA, GL_UNSIGNED_BYTE, image.rgba.data());
  // OpenGL's rows go from bottom to top; a window is opaque.
  for (std::size_t y = 0; y < height / 2; ++y) {
    std::swap_ranges(image.rgba.begin() + static_cast<std::ptrdiff_t>(y * width),
                     image.rgba.begin() + static_cast<std::ptrdiff_t>((y + 1) * width),
                     image.rgba.begin() + static_cast<std::ptrdiff_t>((height - 1 - y) * width));
  }
  for (std::uint32_t& pixel : image.rgba) pixel |= 0xFF000000U;
  return image;
}

void Window::set_title(const std::string& title) { glfwSetWindowTitle(window_, title.c_str()); }

void Window::set_clipboard(const std::string& text) {
  glfwSetClipboardString(window_, text.c_str());
}

std::vector<std::string> Window::take_dropped_files() { return std::exchange(dropped_, {}); }

void Window::wake() { glfwPostEmptyEvent(); }

std::string Window::gl_version() const {
  const auto* version = reinterpret_cast<const char*>(glGetString(GL_VERSION));
  return version == nullptr ? "unknown" : version;
}

}  // namespace blockscope
