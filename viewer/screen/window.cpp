#include "viewer/screen/window.h"

#include <GLFW/glfw3.h>
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_impl_glfw.h>
#include <imgui_impl_opengl3.h>
#include <imgui_impl_opengl3_loader.h>

#include <algorithm>

#include "decode_record/base/error.h"
#include "viewer/screen/heatmap_texture.h"

namespace blockscope {
namespace {

/// The last error GLFW reported. GLFW has one state per process, and so has its error callback.
std::string glfw_problem() {
  const char* text = nullptr;
  glfwGetError(&text);
  return text == nullptr ? "unknown" : text;
}

/// Draws. The backend filters every texture linearly; cells of a heatmap keep sharp borders.
void render(ImDrawData& data) {
  for (ImTextureData* texture : *data.Textures) {
    if (texture->Status == ImTextureStatus_WantCreate && has_sharp_texels(*texture)) {
      ImGui_ImplOpenGL3_UpdateTexture(texture);
      glBindTexture(GL_TEXTURE_2D, static_cast<GLuint>(texture->GetTexID()));
      glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
    }
  }
  ImGui_ImplOpenGL3_RenderDrawData(&data);
}

}  // namespace

Window::Window(const ScreenOptions& options, bool visible) {
  if (glfwInit() != GLFW_TRUE) {
    throw Error(
        fmt::format("view: no display: {}. HINT: look at it in a browser: blockscope view run.h5 "
                    "--serve. Pictures "
                    "need no display: --screenshot out.png",
                    glfw_problem()));
  }
  glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
  glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 3);
  glfwWindowHint(GLFW_OPENGL_PROFILE, GLFW_OPENGL_CORE_PROFILE);
  glfwWindowHint(GLFW_VISIBLE, visible ? GLFW_TRUE : GLFW_FALSE);
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
  glfwSwapInterval(visible ? 1 : 0);
  glfwSetWindowUserPointer(window_, this);
  glfwSetDropCallback(window_, [](GLFWwindow* window, int count, const char** paths) {
    auto* self = static_cast<Window*>(glfwGetWindowUserPointer(window));
    self->dropped_.insert(self->dropped_.end(), paths, paths + count);
  });
  float monitor_scale = 1.0F;
  glfwGetWindowContentScale(window_, &monitor_scale, nullptr);
  begin(options.scale > 0.0F ? options.scale : std::max(1.0F, monitor_scale), options.ini_file);
  ImGui_ImplGlfw_InitForOpenGL(window_, true);
  gl_ready_ = ImGui_ImplOpenGL3_Init("#version 330 core");
}

Window::~Window() {
  if (gl_ready_) ImGui_ImplOpenGL3_Shutdown();
  ImGui_ImplGlfw_Shutdown();
  end();
  glfwDestroyWindow(window_);
  glfwTerminate();
}

bool Window::wait(double seconds) {
  const double begin = glfwGetTime();
  if (seconds <= 0.0) {
    glfwPollEvents();
  } else {
    glfwWaitEventsTimeout(seconds);
  }
  if (glfwWindowShouldClose(window_) == GLFW_TRUE) {
    glfwSetWindowShouldClose(window_, GLFW_FALSE);
    close();
  }
  return seconds <= 0.0 || glfwGetTime() - begin < seconds;
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
  render(*ImGui::GetDrawData());
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

void Window::set_clipboard(const std::string& text) {
  glfwSetClipboardString(window_, text.c_str());
}

void Window::wake() { glfwPostEmptyEvent(); }

}  // namespace blockscope
